#pragma once

#include <qat/numerics/elementary.h>
#include <qat/numerics/host_device.h>

#include <cassert>
#include <cmath>
#include <cstdint>

namespace qat::detail {

class Scalar;

/// Records the few operations between a quantizer's parameters and its grid, for one channel, and computes
/// their gradients backwards. Autograd of tensors would take longer for these than a layer's kernels do. All
/// numbers are float64; nothing is allocated.
class ScalarTape {
 public:
  /// Which gradients an operation passes on.
  enum class Gate : std::int8_t { kAll, kPositive, kNegative, kNone };

  /// A parameter, whose gradient can be asked for.
  QAT_HOST_DEVICE Scalar parameter(double value);

  /// Adds `gradient` to the gradient of a result. Constants have none.
  QAT_HOST_DEVICE void seed(const Scalar& result, double gradient);
  /// To be called once, after all seeds.
  QAT_HOST_DEVICE void run_backward();
  QAT_HOST_DEVICE double gradient(const Scalar& parameter) const;

  /// The most numbers that a tape can hold, constants not counted.
  static constexpr int kMostNodes = 32;
  QAT_HOST_DEVICE int length() const { return count_; }

 private:
  friend class Scalar;
  struct Node {
    int first = -1;  ///< operands; -1: none.
    int second = -1;
    double first_slope = 0;
    double second_slope = 0;
    Gate gate = Gate::kAll;
    double gradient = 0;
  };
  /// The index of a new node.
  QAT_HOST_DEVICE int add_node() {
    assert(count_ < kMostNodes && "qat: the formula is too long for ScalarTape; raise kMostNodes");
    return count_++;
  }

  int count_ = 0;
  Node nodes_[kMostNodes];
};

/// A number on a tape, or a constant.
class Scalar {
 public:
  QAT_HOST_DEVICE Scalar(double value = 0)
      : value_(value) {}  // NOLINT: constants mix with numbers on the tape

  QAT_HOST_DEVICE double value() const { return value_; }

  /// A function of one number with the given value and derivative.
  QAT_HOST_DEVICE Scalar with(double value, double slope,
                              ScalarTape::Gate gate = ScalarTape::Gate::kAll) const {
    return of_two(*this, slope, Scalar(), 0, value, gate);
  }

  QAT_HOST_DEVICE friend Scalar operator+(const Scalar& a, const Scalar& b) {
    return of_two(a, 1, b, 1, a.value_ + b.value_);
  }
  QAT_HOST_DEVICE friend Scalar operator-(const Scalar& a, const Scalar& b) {
    return of_two(a, 1, b, -1, a.value_ - b.value_);
  }
  QAT_HOST_DEVICE friend Scalar operator-(const Scalar& a) { return a.with(-a.value_, -1); }
  QAT_HOST_DEVICE friend Scalar operator*(const Scalar& a, const Scalar& b) {
    return of_two(a, b.value_, b, a.value_, a.value_ * b.value_);
  }
  QAT_HOST_DEVICE friend Scalar operator/(const Scalar& a, const Scalar& b) {
    const double quotient = a.value_ / b.value_;
    return of_two(a, 1 / b.value_, b, -quotient / b.value_, quotient);
  }

 private:
  friend class ScalarTape;

  QAT_HOST_DEVICE static Scalar of_two(const Scalar& a, double a_slope, const Scalar& b, double b_slope,
                                       double value, ScalarTape::Gate gate = ScalarTape::Gate::kAll) {
    Scalar result(value);
    result.tape_ = a.tape_ != nullptr ? a.tape_ : b.tape_;
    if (result.tape_ == nullptr) return result;
    result.node_ = result.tape_->add_node();
    auto& node = result.tape_->nodes_[result.node_];
    node.first = a.node_;
    node.first_slope = a_slope;
    node.second = b.node_;
    node.second_slope = b_slope;
    node.gate = gate;
    return result;
  }

  double value_;
  ScalarTape* tape_ = nullptr;
  int node_ = -1;
};

QAT_HOST_DEVICE Scalar ScalarTape::parameter(double value) {
  Scalar result(value);
  result.tape_ = this;
  result.node_ = add_node();
  return result;
}

QAT_HOST_DEVICE void ScalarTape::seed(const Scalar& result, double gradient) {
  if (result.node_ >= 0) nodes_[result.node_].gradient += gradient;
}

QAT_HOST_DEVICE double ScalarTape::gradient(const Scalar& parameter) const {
  return parameter.node_ >= 0 ? nodes_[parameter.node_].gradient : 0.0;
}

QAT_HOST_DEVICE void ScalarTape::run_backward() {
  for (int i = count_ - 1; i >= 0; --i) {
    const Node& node = nodes_[i];
    const bool passes = node.gate == Gate::kAll || (node.gate == Gate::kPositive && node.gradient > 0) ||
                        (node.gate == Gate::kNegative && node.gradient < 0);
    if (!passes) continue;
    if (node.first >= 0) nodes_[node.first].gradient += node.gradient * node.first_slope;
    if (node.second >= 0) nodes_[node.second].gradient += node.gradient * node.second_slope;
  }
}

/// clip(v, min, max) for a parameter. The gradient passes strictly between the bounds. At or beyond a bound
/// it passes if descent moves the parameter inward, so that no parameter stays at its bound for ever;
/// `strict`: never (nnabla).
QAT_HOST_DEVICE Scalar bounded(const Scalar& v, double min, double max, bool strict = false) {
  using Gate = ScalarTape::Gate;
  const double x = v.value();
  const bool above_min = x > min;
  const bool below_max = x < max;
  auto gate = Gate::kAll;
  if (!above_min) gate = strict || !below_max ? Gate::kNone : Gate::kNegative;
  if (above_min && !below_max) gate = strict ? Gate::kNone : Gate::kPositive;
  return v.with(x < min ? min : (x > max ? max : x), 1, gate);
}

/// min(v, upper), `upper` without gradient. Where v is above, the gradient passes if descent lowers v.
QAT_HOST_DEVICE Scalar held_below(const Scalar& v, double upper) {
  const bool is_above = v.value() > upper;
  return v.with(is_above ? upper : v.value(), 1,
                is_above ? ScalarTape::Gate::kPositive : ScalarTape::Gate::kAll);
}

/// `value` in place of v, with the gradient of v.
QAT_HOST_DEVICE Scalar replaced(const Scalar& v, double value) {
  return v.with(value, 1);
}

/// Rounds half away from zero; gradient 1.
QAT_HOST_DEVICE Scalar rounded(const Scalar& v) {
  return v.with(qat::round_to_integer<Rounding::kHalfAwayFromZero>(v.value()), 1);
}

/// Rounds up; gradient 1.
QAT_HOST_DEVICE Scalar rounded_up(const Scalar& v) {
  return v.with(std::ceil(v.value()), 1);
}

/// The nearest power of two; gradient P / v.
QAT_HOST_DEVICE Scalar nearest_power_of_two(const Scalar& v) {
  return v.with(qat::nearest_power_of_two(v.value()), qat::nearest_power_of_two_slope(v.value()));
}

QAT_HOST_DEVICE Scalar exp2(const Scalar& v) {
  return v.with(std::exp2(v.value()), qat::exp2_slope(v.value()));
}

QAT_HOST_DEVICE Scalar log2(const Scalar& v) {
  return v.with(std::log2(v.value()), 1 / (v.value() * 0.693147180559945309417232121458));
}

/// v, with `factor` times the gradient.
QAT_HOST_DEVICE Scalar with_gradient_scale(const Scalar& v, double factor) {
  return v.with(v.value(), factor);
}

/// The largest power of two that is not above v, for v > 0.
QAT_HOST_DEVICE double power_of_two_below(double v) {
  int exponent = 0;
  std::frexp(v, &exponent);
  return std::ldexp(1.0, exponent - 1);
}

}  // namespace qat::detail
