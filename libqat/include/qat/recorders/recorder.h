#pragma once

#include <qat/numerics/affine_params.h>
#include <qat/tensor_module.h>

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace qat {

/// The five recorders of nnabla's QNN, under its names.
enum class RecorderKind : std::int8_t {
  kMinMaxMinMax,  ///< min and max over everything seen.
  kAbsMax,        ///< max |x| over everything seen; range (-M, M).
  kMinMaxMva,     ///< moving averages of the batches' min and max.
  kMaxMax,        ///< as kAbsMax; in the compatible form max x, without the absolute value.
  kMaxMva,        ///< moving average of the batches' max |x|; compatible: of max x.
};

/// "MinMaxMinMax", "AbsMax", "MinMaxMva", "MaxMax", "MaxMva".
std::string to_string(RecorderKind kind);
/// Reads such a name (with or without the suffix "RecorderCallback"). Throws: c10::ValueError listing the names.
RecorderKind parse_recorder_kind(std::string_view text);

/// Corrected: absolute maxima, the first batch is copied into moving averages. Nnabla: its numbers, faults included
/// (maxima without the absolute value, averages that start at 0).
enum class RecorderBehaviour : std::int8_t { kCorrected, kNnabla };

struct RecorderOptions {
  RecorderKind kind = RecorderKind::kMinMaxMinMax;
  /// The channel axis, negative counts from the end; nullopt: one range for the whole tensor.
  std::optional<std::int64_t> axis = std::nullopt;
  /// Moving averages: new = decay * old + (1 - decay) * batch. In [0, 1).
  double decay = 0.99;
  RecorderBehaviour behaviour = RecorderBehaviour::kCorrected;
};

/// Collects the range of the tensors that pass through it; the tensor itself passes unchanged, and so does its gradient.
///
/// Buffers (the checkpoint format): `min_val`, `max_val` (float32, [] or [C]; NaN-free), `recorded` (int64, [], number of
/// batches). "Nothing seen yet" is recorded == 0. Records only in train mode. Per channel, the number of channels is
/// fixed by the first batch (before it the buffers have shape [0]).
/// Ignored: empty tensors, integer and boolean tensors, NaN elements (a batch of NaN only counts as empty), infinities
/// (documented: treated like NaN).
class Recorder : public TensorModule {
 public:
  explicit Recorder(RecorderOptions options = {});

  /// Records x if this module is in train mode; returns x.
  torch::Tensor forward(const torch::Tensor& x) override;
  /// Updates the range, in any mode.
  void record(const torch::Tensor& x);
  /// The recorded range (abs-max kinds: (-M, M)). Throws: c10::Error if nothing was recorded.
  ValueRange range() const;
  /// Number of batches seen.
  std::int64_t recorded() const;
  /// Forgets everything; buffers keep device and type.
  void reset();

  /// Combines per-batch minima and maxima across processes before they enter the state: called as reduce(min, max) with
  /// tensors that it overwrites. Shared by all recorders of the process; empty by default.
  using Reduction = std::function<void(torch::Tensor& min, torch::Tensor& max)>;
  static void set_reduction(Reduction reduction);

  std::string config() const override;
  void pretty_print(std::ostream& stream) const override;
  const RecorderOptions& options() const { return options_; }

 private:
  RecorderOptions options_;
  torch::Tensor min_val_;
  torch::Tensor max_val_;
  torch::Tensor recorded_;
};

/// nnabla's scale for a recorder: (max - min or 2 max) / 255 (254 if narrow), zero point 0, exponent rounded; signed
/// 8 bits. Only for comparison with nnabla's numbers (its faults B28, B29, B31 included).
torch::Tensor nnabla_scale(const Recorder& recorder, RangeWidth width, PowerOfTwo power_of_two);

}  // namespace qat
