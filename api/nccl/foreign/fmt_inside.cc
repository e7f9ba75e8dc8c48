// The code of fmt, compiled in so that libnccl.so.2 needs no libfmt. Part of libnccl.so.2 only.
#include <fmt/format-inl.h>

#include <locale>

FMT_BEGIN_NAMESPACE
namespace detail {
template FMT_API locale_ref::locale_ref(const std::locale&);
template FMT_API auto locale_ref::get<std::locale>() const -> std::locale;
template FMT_API auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template FMT_API auto thousands_sep_impl<wchar_t>(locale_ref) -> thousands_sep_result<wchar_t>;
template FMT_API char decimal_point_impl(locale_ref);
template FMT_API wchar_t decimal_point_impl(locale_ref);
}  // namespace detail
FMT_END_NAMESPACE
