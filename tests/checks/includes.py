# Headers must include what they use of the standard library, directly or through this project's headers, but not
# through other headers of the standard library or through precompiled headers. Usage: includes.py ROOT. Exits with 1
# and prints a line for each finding.
import functools
import pathlib
import re
import sys
import tempfile

import layering
import tree

# name in std:: -> the headers that declare it according to the standard
PROVIDERS = {}


def provide(headers, names):
    for name in names.split():
        PROVIDERS.setdefault(name, set()).update(headers.split())


provide("algorithm", "sort stable_sort all_of any_of none_of find_if find_if_not count_if copy_n copy_if fill_n generate "
        "lower_bound upper_bound equal_range max_element min_element minmax_element min max clamp reverse rotate unique "
        "remove_if equal lexicographical_compare nth_element partial_sort is_sorted binary_search transform for_each "
        "adjacent_find mismatch set_difference")
provide("array", "array to_array")
provide("atomic", "atomic atomic_ref atomic_thread_fence memory_order_relaxed memory_order_acquire memory_order_release "
        "memory_order_acq_rel memory_order_seq_cst memory_order")
provide("bit", "bit_cast popcount bit_width countr_zero countl_zero has_single_bit bit_ceil bit_floor endian")
provide("charconv", "from_chars to_chars from_chars_result")
provide("chrono", "chrono")
provide("cmath", "sqrt pow log exp isnan isfinite isinf floor ceil round lround llround fabs cos sin tanh signbit copysign nextafter")
provide("condition_variable", "condition_variable condition_variable_any cv_status")
provide("cstdint", "uint8_t uint16_t uint32_t uint64_t int8_t int16_t int32_t int64_t uintptr_t intptr_t")
provide("cstddef", "byte nullptr_t max_align_t ptrdiff_t")
provide("cstddef cstdio cstdlib cstring ctime cwchar", "size_t")
provide("cstring", "memcpy memset memcmp memmove strlen strcmp strchr strncpy strerror")
provide("cstdio", "printf fprintf snprintf FILE fputs puts fopen fclose")
provide("cstdlib", "getenv strtol strtod strtoull abort exit malloc free")
provide("deque", "deque")
provide("exception", "exception_ptr current_exception rethrow_exception terminate uncaught_exceptions")
provide("filesystem", "filesystem")
provide("fstream", "ifstream ofstream fstream")
provide("functional", "function hash less greater plus invoke bind_front reference_wrapper ref cref equal_to")
provide("future", "future promise packaged_task async shared_future")
provide("initializer_list", "initializer_list")
provide("iostream", "cout cerr clog cin")
provide("iterator algorithm array deque list map set span string string_view vector unordered_map", "size data begin end ssize")
provide("iterator", "back_inserter istreambuf_iterator ostream_iterator make_move_iterator")
provide("limits", "numeric_limits")
provide("list", "list")
provide("map", "map multimap")
provide("memory", "unique_ptr shared_ptr weak_ptr make_unique make_shared enable_shared_from_this addressof static_pointer_cast "
        "owner_less align assume_aligned")
provide("mutex", "mutex lock_guard unique_lock scoped_lock recursive_mutex once_flag call_once timed_mutex defer_lock "
        "try_to_lock adopt_lock")
provide("mutex shared_mutex", "defer_lock try_to_lock adopt_lock unique_lock")
provide("new", "bad_alloc nothrow align_val_t launder")
provide("numeric", "accumulate iota gcd lcm inner_product partial_sum reduce exclusive_scan")
provide("optional", "optional nullopt make_optional nullopt_t")
provide("ostream iostream sstream fstream", "ostream endl flush")
provide("random", "mt19937 mt19937_64 uniform_int_distribution uniform_real_distribution normal_distribution random_device")
provide("set", "set multiset")
provide("shared_mutex", "shared_mutex shared_lock")
provide("span", "span as_bytes as_writable_bytes dynamic_extent")
provide("sstream", "stringstream istringstream ostringstream")
provide("stdexcept", "runtime_error logic_error invalid_argument out_of_range")
provide("string", "string to_string stoi stod getline stoul stoull basic_string")
provide("string_view", "string_view")
provide("string string_view", "char_traits")
provide("system_error", "error_code system_error errc generic_category make_error_code")
provide("thread", "thread jthread this_thread")
provide("thread stop_token", "stop_token stop_source")
provide("tuple", "tuple make_tuple tie apply forward_as_tuple get")
provide("type_traits", "is_same_v is_same is_base_of_v is_integral_v is_floating_point_v is_trivially_copyable_v enable_if_t "
        "conditional_t decay_t remove_cvref_t remove_const_t remove_reference_t is_signed_v is_unsigned_v make_unsigned_t invoke_result_t "
        "is_void_v true_type false_type underlying_type_t is_convertible_v is_constructible_v is_enum_v is_invocable_v "
        "is_trivially_destructible_v is_nothrow_move_constructible_v common_type_t integral_constant remove_pointer_t")
provide("unordered_map", "unordered_map")
provide("unordered_set", "unordered_set")
provide("utility", "move forward pair make_pair swap exchange index_sequence make_index_sequence in_place declval as_const to_underlying "
        "cmp_less integer_sequence in_place_type")
provide("utility tuple array variant", "get")
provide("algorithm array deque list map memory set string string_view tuple unordered_map utility vector optional functional", "swap move")
provide("variant", "variant visit monostate holds_alternative get_if variant_size_v variant_alternative_t")
provide("vector", "vector")
# What including one standard header also provides, according to the standard.
FOR_FREE = {
    "utility": "algorithm map set memory optional tuple variant unordered_map functional chrono",
    "cstddef": "array span vector string string_view memory iterator",
    "initializer_list": "vector string map set array deque list optional utility",
    "string": "sstream fstream system_error iostream stdexcept filesystem",
    "string_view": "string",
    "functional": "",
    "exception": "new stdexcept",
    "ratio": "chrono",
    "iterator": "vector string map set span array",
    "cstdint": "atomic chrono",
}
C_NAMES = {"stdint.h": "cstdint", "stddef.h": "cstddef", "string.h": "cstring", "stdio.h": "cstdio", "stdlib.h": "cstdlib",
           "math.h": "cmath"}
# Headers of other projects that provide, and document, standard types in their interfaces.
OTHERS = {"gtest/gtest.h": "string vector memory ostream cstddef utility tuple iostream sstream set map type_traits functional",
          "gmock/gmock.h": "string vector memory ostream cstddef utility tuple iostream sstream set map type_traits functional",
          "fmt/format.h": "string string_view cstddef utility", "fmt/core.h": "string string_view cstddef"}
USED = re.compile(r"\bstd::([a-z_0-9]+)")
# Libraries that are precompiled too: their namespace, and the prefix of their headers' names.
LIBRARIES = [(re.compile(r"(?<![\w:])(?:::)?fmt::"), "fmt/"), (re.compile(r"(?<![\w:])(?:::)?testing::"), ("gtest/", "gmock/"))]


def reach_of(root):
    @functools.cache
    def reach(path):
        """Standard headers that a header of this project includes, directly or through other headers of this
        project."""
        found, pending, seen = set(), [path], {path}
        while pending:
            file = pending.pop()
            for _, bracket, name in tree.includes((root / file).read_text()):
                target = layering.resolve(root, file.as_posix(), name)
                if target and (root / target).is_file():
                    if target not in seen:
                        seen.add(target)
                        pending.append(target)
                    continue
                name = C_NAMES.get(name, name)
                found.add(name)
                found.update(OTHERS.get(name, "").split())
        more = {header for header, givers in FOR_FREE.items() if found & set(givers.split())}
        return found | more

    return reach


def findings(root):
    reach = reach_of(root)
    for path in tree.files(root, suffixes={".h", ".hpp"}):
        code = tree.without_comments((root / path).read_text())
        have, told = reach(path), set()
        for match in USED.finditer(code):
            name = match[1]
            providers = PROVIDERS.get(name)
            if not providers or providers & have or name in told:
                continue
            told.add(name)
            line = code.count("\n", 0, match.start()) + 1
            yield f"{path}:{line}: std::{name} without <{'> or <'.join(sorted(providers))}>"
        for pattern, prefix in LIBRARIES:
            match = pattern.search(code)
            if match and not any(header.startswith(prefix) for header in have):
                line = code.count("\n", 0, match.start()) + 1
                yield f"{path}:{line}: {match[0]} without a header of that library"


def self_test():
    """Self-test: plants headers that lack an include, and correct ones beside them; returns wrong verdicts."""
    planted = [
        ("runtime/core/a.h", "#include <vector>\nstd::vector<int> a; std::size_t n;\n", False),
        ("runtime/core/b.h", "std::string b;\n", True),
        ("runtime/core/c.h", '#include "runtime/core/a.h"\nstd::vector<int> c;\n', False),
        ("runtime/core/d.h", "#include <vector>\nint d = std::max(1, 2);\n", True),
        ("runtime/core/e.h", "// std::map is not used\n", False),
        ("runtime/core/f.h", "#include <fmt/format.h>\nstd::optional<int> f;\n", True),
        ("runtime/core/h.h", "#include <string>\nstd::string h = fmt::format(1);\n", True),
        ("tests/g.h", "#include <mutex>\nstd::unique_lock<std::mutex> g; std::thread t;\n", True),
    ]
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory).resolve()
        for path, text, _ in planted:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        caught = {line.split(":")[0] for line in findings(root)}
    return [f"{path}: {'missed' if bad else 'falsely accused'}" for path, _, bad in planted if (path in caught) != bad]


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: includes.py ROOT")
    wrong = self_test()
    if wrong:
        sys.exit("the check itself is broken:\n" + "\n".join(wrong))
    found = list(findings(tree.root_of(sys.argv[1])))
    print("\n".join(found) or "all headers include what they use of the standard library")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
