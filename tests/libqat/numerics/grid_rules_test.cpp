#include "numerics/grid_rules.h"

#include <algorithm>
#include <vector>

#include "support/catch.h"

namespace {

using namespace qat::detail;
using qat::LearnedStepKind;
using qat::ParametricKind;

/// How many numbers a rule puts on a tape.
template <class Rule>
int tape_length(const Rule& rule, double first, double second, double bits_limit) {
  ScalarTape tape;
  const Scalar p = tape.parameter(first);
  const Scalar q = tape.parameter(second);
  rule.derive(p, q, bits_limit);
  return tape.length();
}

/// Within the bounds, at them and beyond them.
const std::vector<double> kParameters = {-1e9, -3, 0.01, 0.3, 2, 5, 16, 1e9};

}  // namespace

TEST_CASE("no grid rule is too long for the tape") {
  int longest = 0;
  for (int k = 0; k < 8; ++k) {
    for (int options = 0; options < 8; ++options) {
      const ParametricRule rule{.kind = static_cast<ParametricKind>(k),
                                .is_signed = (options & 1) != 0,
                                .with_zero = (options & 2) != 0,
                                .compatible = (options & 4) != 0,
                                .most_magnitudes = 64,
                                .first = {0.001, 16},
                                .second = {0.001, 16}};
      for (const double p : kParameters) {
        for (const double q : kParameters) {
          for (const double limit : {2.0, 16.0})
            longest = std::max(longest, tape_length(rule, p, q, limit));
          longest = std::max(longest, tape_length(BitCountRule{rule, 2}, p, q, 16));
        }
      }
    }
  }
  for (int k = 0; k < 4; ++k) {
    const LearnedStepRule rule{.kind = static_cast<LearnedStepKind>(k),
                               .qmin = 0,
                               .qmax = 15,
                               .step_bits = 4,
                               .bounds = {0.001, 16},
                               .gradient_factor = 0.5};
    for (const double p : kParameters)
      longest = std::max(longest, tape_length(rule, p, 0.5, 16));
  }
  CHECK(longest > 10);
  CHECK(longest <= ScalarTape::kMostNodes);
}
