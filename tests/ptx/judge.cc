// Checks a shape by the axioms and by the interpreter: it must allow what it may, never allow what it must
// not, and its weakenings must be detected. See litmus.h.
#include "tests/ptx/litmus.h"

#include <algorithm>

namespace ptx::litmus {
namespace {

bool any(const Outcomes& outcomes, const std::string& pattern) {
  return std::any_of(outcomes.begin(), outcomes.end(),
                     [&](const std::string& o) { return matches(o, pattern); });
}
/// An outcome that `never` forbids among these, or nothing.
std::string broken(const Shape& shape, const Outcomes& outcomes) {
  for (const std::string& o : outcomes)
    for (const std::string& never : shape.never)
      if (matches(o, never)) return o;
  return {};
}
Shape weakened(const Shape& shape, const Weakening& w) {
  Shape other = shape;
  bool changed = false;
  for (Thread& t : other.threads)
    for (std::size_t at = 0; (at = t.text.find(w.from, at)) != std::string::npos; at += w.to.size()) {
      t.text.replace(at, w.from.size(), w.to);
      changed = true;
    }
  if (!changed) throw Violation(std::string(shape.name) + ": nothing to weaken: " + w.what);
  return other;
}

}  // namespace

Verdict judge(const Shape& s) {
  const Program program = parse(s);
  Verdict v{by_axioms(program), by_interpreter(program), {}, {}};
  const auto fail = [&](const std::string& what) { v.failures.push_back(std::string(s.name) + ": " + what); };
  if (const std::string o = broken(s, v.model.outcomes); !o.empty()) fail("allowed: " + o);
  for (const std::string& may : s.may)
    if (!any(v.model.outcomes, may)) fail("not allowed: " + may);
  for (const std::string& o : v.made.outcomes)
    if (!v.model.outcomes.contains(o)) fail("made by the interpreter, against the axioms: " + o);
  if (!s.narrower && v.made.outcomes != v.model.outcomes) fail("the interpreter makes fewer outcomes");
  for (const Weakening& w : s.weakenings) {
    const Program p = parse(weakened(s, w));
    v.weaker.push_back({w.what, broken(s, by_axioms(p).outcomes), broken(s, by_interpreter(p).outcomes)});
    if (v.weaker.back().by_axioms.empty()) fail(std::string("allows nothing more: ") + w.what);
    if (v.weaker.back().by_interpreter.empty() != w.beyond)
      fail(std::string("found by one and not by the other: ") + w.what);
  }
  return v;
}

}  // namespace ptx::litmus
