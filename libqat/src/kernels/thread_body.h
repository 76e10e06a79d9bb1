#pragma once

#include "kernels/device_pass.h"
#include "kernels/half.h"
#include "kernels/thread_plan.h"
#include <qat/numerics/affine.h>
#include <qat/numerics/power_of_two.h>
#include <qat/numerics/uniform.h>

#include <cstdint>
#include <type_traits>

namespace qat::kernels {

// What a thread of a GPU does with its elements: passes for for_each_element. The CPU compiles them too, so
// that tests can run a GPU's threads one after the other.

/// The elements in flight of one thread; T is the type of the arithmetic. They are converted when they are
/// used, so that reading the next one need not wait for them.
template <class E>
struct ElementsInFlight {
  using T = std::conditional_t<std::is_same_v<E, double>, double, float>;
  const E* __restrict__ x;
  const E* __restrict__ dy;
  E values[kSlots];
  E gradients[kSlots];
  T negative_slope;
  T upper;

  QAT_HOST_DEVICE explicit ElementsInFlight(const DevicePass& pass)
      : x(static_cast<const E*>(pass.x)),
        dy(static_cast<const E*>(pass.dy)),
        negative_slope(static_cast<T>(pass.negative_slope)),
        upper(static_cast<T>(pass.upper)) {}
  QAT_HOST_DEVICE void read_x(int slot, std::int64_t i) { values[slot] = x[i]; }
  QAT_HOST_DEVICE void read_dy(int slot, std::int64_t i) { gradients[slot] = dy[i]; }
  /// x after the activation.
  QAT_HOST_DEVICE T activated(int slot) const {
    return activate(to_compute(values[slot]), negative_slope, upper);
  }
  QAT_HOST_DEVICE T gradient(int slot) const { return to_compute(gradients[slot]); }
  /// The gradient of x from that of the activation; 0 where the activation blocks it, whatever it is.
  QAT_HOST_DEVICE T through_activation(int slot, T of_activated) const {
    const T slope = activation_slope(to_compute(values[slot]), negative_slope, upper);
    return slope == T(0) ? T(0) : of_activated * slope;
  }
};

/// An entry of AffineTables.
template <class T>
struct AffineCell {
  T scale;
  T zero_point;
  T low;
  T high;
  Rounding rounding;

  QAT_HOST_DEVICE AffineCell(const AffineTables& tables, std::int64_t channel)
      : scale(static_cast<T>(tables.scale[channel])),
        zero_point(static_cast<T>(tables.zero_point[channel])),
        low(static_cast<T>(tables.low ? tables.low[channel] : tables.qmin)),
        high(static_cast<T>(tables.high ? tables.high[channel] : tables.qmax)),
        rounding(tables.rounding) {}
  QAT_HOST_DEVICE T code(T x) const { return affine_code(x, scale, zero_point, low, high, rounding); }
  QAT_HOST_DEVICE T real(T x) const { return affine_real(code(x), scale, zero_point); }
  /// Whether the code before clamping lies in [low, high].
  QAT_HOST_DEVICE bool passes(T x) const {
    return affine_passes(round_to_integer(x / scale, rounding) + zero_point, low, high);
  }
};

/// x -> out: real values of the type of x.
template <class E>
struct ForwardPass : ElementsInFlight<E> {
  AffineCell<typename ElementsInFlight<E>::T> cell;
  E* __restrict__ out;

  QAT_HOST_DEVICE ForwardPass(const DevicePass& pass, const AffineTables& tables, std::int64_t channel)
      : ElementsInFlight<E>(pass), cell(tables, channel), out(static_cast<E*>(pass.out)) {}
  QAT_HOST_DEVICE void read(int slot, std::int64_t i) { this->read_x(slot, i); }
  QAT_HOST_DEVICE void write(int slot, std::int64_t i) {
    out[i] = FromCompute<E>::convert(cell.real(this->activated(slot)));
  }
};

/// x -> out: int32 codes. A NaN gets 0 and is noted.
template <class E>
struct CodesPass : ElementsInFlight<E> {
  AffineCell<typename ElementsInFlight<E>::T> cell;
  std::int32_t* __restrict__ out;
  bool has_nan = false;

  QAT_HOST_DEVICE CodesPass(const DevicePass& pass, const AffineTables& tables, std::int64_t channel)
      : ElementsInFlight<E>(pass), cell(tables, channel), out(static_cast<std::int32_t*>(pass.out)) {}
  QAT_HOST_DEVICE void read(int slot, std::int64_t i) { this->read_x(slot, i); }
  QAT_HOST_DEVICE void write(int slot, std::int64_t i) {
    const auto code = cell.code(this->activated(slot));
    const bool is_nan = code != code;
    has_nan = has_nan || is_nan;
    out[i] = is_nan ? 0 : static_cast<std::int32_t>(code);
  }
};

/// x, dy -> out: the gradient of x, of its type; where `clipped`, only of codes in range before clamping.
template <class E>
struct BackwardPass : ElementsInFlight<E> {
  using typename ElementsInFlight<E>::T;
  AffineCell<T> cell;
  E* __restrict__ out;
  bool clipped;

  QAT_HOST_DEVICE BackwardPass(const DevicePass& pass, const AffineTables& tables, bool only_in_range,
                               std::int64_t channel)
      : ElementsInFlight<E>(pass),
        cell(tables, channel),
        out(static_cast<E*>(pass.out)),
        clipped(only_in_range) {}
  QAT_HOST_DEVICE void read(int slot, std::int64_t i) {
    this->read_x(slot, i);
    this->read_dy(slot, i);
  }
  QAT_HOST_DEVICE void write(int slot, std::int64_t i) {
    const bool passes = !clipped || cell.passes(this->activated(slot));
    out[i] = FromCompute<E>::convert(this->through_activation(slot, passes ? this->gradient(slot) : T(0)));
  }
};

/// An entry of PowerOfTwoTables.
template <class T>
QAT_HOST_DEVICE PowerOfTwoCell<T> device_cell(const PowerOfTwoTables& tables, std::int64_t channel) {
  return power_of_two_cell(static_cast<T>(tables.xmin[channel]), static_cast<T>(tables.xmax[channel]),
                           tables.is_signed, tables.with_zero);
}

/// x -> out: values of a power-of-two grid, of the type of x.
template <class E>
struct PowerOfTwoPass : ElementsInFlight<E> {
  using typename ElementsInFlight<E>::T;
  PowerOfTwoCell<T> cell;
  E* __restrict__ out;

  QAT_HOST_DEVICE PowerOfTwoPass(const DevicePass& pass, const PowerOfTwoTables& tables, std::int64_t channel)
      : ElementsInFlight<E>(pass), cell(device_cell<T>(tables, channel)), out(static_cast<E*>(pass.out)) {}
  QAT_HOST_DEVICE void read(int slot, std::int64_t i) { this->read_x(slot, i); }
  QAT_HOST_DEVICE void write(int slot, std::int64_t i) {
    out[i] = FromCompute<E>::convert(power_of_two_real(this->activated(slot), cell));
  }
};

/// Does the elements of a thread by `Pass(arguments..., channel)` and returns the pass as it is afterwards.
/// The thread must have a column.
template <class Pass, class... Arguments>
QAT_HOST_DEVICE Pass run_thread(const ThreadPlan& plan, std::int64_t block, int thread,
                                const Arguments&... arguments) {
  Pass pass(arguments..., plan.channel(plan.column_of_thread(block, thread)));
  for_each_element(plan, block, thread, pass);
  return pass;
}

}  // namespace qat::kernels
