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

/// The five recorders of nnabla's QNN, under its names, and three that look at the distribution.
enum class RecorderKind : std::int8_t {
  kMinMaxMinMax,  ///< min and max over everything seen.
  kAbsMax,        ///< max |x| over everything seen; range (-M, M).
  kMinMaxMva,     ///< moving averages of the batches' min and max.
  kMaxMax,        ///< as kAbsMax; in the compatible form max x, without the absolute value.
  kMaxMva,        ///< moving average of the batches' max |x|; compatible: of max x.
  kPercentile,    ///< leaves the outermost elements out, the same share on each side.
  kHistogram,  ///< the range with the least squared error of a uniform grid: step^2 / 12 within, the squared
               ///< distance beyond.
  kKlDivergence,  ///< the threshold whose quantized distribution differs least from that of the data, in the
                  ///< sense of Kullback and Leibler (Migacz, "8-bit Inference with TensorRT", 2017).
};

/// Whether a recorder keeps the smallest value apart from the largest: all but AbsMax, MaxMax and MaxMva.
bool keeps_minimum(RecorderKind kind);

/// "MinMaxMinMax", "AbsMax", "MinMaxMva", "MaxMax", "MaxMva", "Percentile", "Histogram", "KlDivergence".
std::string to_string(RecorderKind kind);
/// Reads such a name, in any case, with or without the suffix "RecorderCallback". Throws: c10::ValueError
/// listing the names.
RecorderKind parse_recorder_kind(std::string_view text);

/// Corrected: absolute maxima, the first batch is copied into moving averages. Nnabla: its numbers, faults
/// included (maxima without the absolute value, every state starts at 0). For comparisons; a range may then
/// be reversed.
enum class RecorderBehaviour : std::int8_t { kCorrected, kNnabla };

struct RecorderOptions {
  RecorderKind kind = RecorderKind::kMinMaxMinMax;
  /// The channel axis, negative counts from the end; nullopt: one range for the whole tensor.
  std::optional<std::int64_t> axis = std::nullopt;
  /// Moving averages: new = decay * old + (1 - decay) * batch, once for each call. In [0, 1).
  double decay = 0.99;
  RecorderBehaviour behaviour = RecorderBehaviour::kCorrected;
  /// Percentile: at most 100 - percentile per cent of the elements lie above the range, and as many below. In
  /// (50, 100].
  double percentile = 99.99;
  /// Histogram, KlDivergence: the width that the tensor will have, 1 to 16 bits.
  std::int64_t bits = 8;
  /// The same: the range is [-T, T], for signed codes with zero point 0; else its ends are found apart
  /// (KlDivergence: [0, T] where nothing is negative).
  bool symmetric = false;
};

/// Collects the range of the tensors that pass through it, and their mean magnitude; the tensor itself passes
/// unchanged, and so does its gradient.
///
/// The last three kinds keep a histogram of 4096 bins over a range that grows by powers of two, so that no
/// batch and no order of batches is favoured; they are per tensor only, and recording waits for a GPU, and
/// range() searches on the CPU.
///
/// Buffers (the checkpoint format): `min_val`, `max_val` (float32, [] or [C], never NaN; (+inf, -inf) where
/// nothing was seen; the abs-max kinds keep -M and M), `mean_abs` (float32, of the same shape: the largest
/// mean |x| of a batch, 0 where nothing was seen), `recorded` (int64, [], number of batches); of the kinds
/// with a histogram `counts` (int64 [4096]), `limit` (float64 [], bins lie in [-limit, limit)) and `zeros`
/// (int64 []). Per channel, the number of channels is fixed by the first batch; before it the buffers have
/// shape [0]. Batches may differ in every other size. Ignored: NaN and infinite elements (a batch without a
/// finite element does not count; a channel without one keeps its range), empty tensors, integer and boolean
/// tensors. Types: any real floating type; the state is float32, a double is rounded to the nearest float32.
/// No host synchronisation on a GPU.
class Recorder : public TensorModule {
 public:
  /// Throws: c10::ValueError if the decay, the percentile or the bits are out of range, or if a kind with a
  /// histogram has an axis or nnabla's behaviour.
  explicit Recorder(RecorderOptions options = {});

  /// Records x if this module is in train mode; returns x itself.
  torch::Tensor forward(const torch::Tensor& x) override;
  /// Updates the range, in any mode.
  /// Throws: c10::TypeError if x is complex, c10::IndexError if it has no such axis, c10::ValueError if it
  /// has another number of channels than the first batch. The state is then as before.
  void record(const torch::Tensor& x);
  /// A copy of the recorded range (abs-max kinds: (-M, M)); (0, 0) for a channel that was never seen. Waits
  /// for a GPU. Throws: c10::Error if nothing was recorded.
  ValueRange range() const;
  /// A copy of `mean_abs`, the largest mean |x| of a batch (not a mean over batches: so it does not depend on
  /// their order, and processes can join theirs by a maximum).
  torch::Tensor mean_magnitude() const;
  /// Number of batches seen. Waits for a GPU.
  std::int64_t recorded() const;
  /// Forgets everything; buffers keep device and type.
  void reset();

  /// Combines per-batch minima and maxima across processes before they enter the state: called as reduce(min,
  /// max) with float32 tensors of shape [] or [C] (twice a batch: the range, then the mean magnitude as both)
  /// that it overwrites by the minimum and the maximum over all processes. A process whose batch is empty
  /// takes part with (+inf, -inf), so that no process waits in vain. Shared by all recorders of the program;
  /// none by default. With it, ranges do not depend on the number of processes.
  using Reduction = std::function<void(torch::Tensor& min, torch::Tensor& max)>;
  /// Overwrites int64 counts by their sums over all processes; for the kinds with a histogram, once a batch.
  using CountReduction = std::function<void(torch::Tensor& counts)>;
  static void set_reduction(Reduction reduction, CountReduction count_reduction = {});

  std::string config() const override;
  /// "qat::MinMaxMva(axis=1, decay=0.99, recorded=3)".
  void pretty_print(std::ostream& stream) const override;
  /// Reads the buffers; the device stays. Throws: c10::Error naming key and shapes if they do not fit;
  /// nothing is changed.
  void load(torch::serialize::InputArchive& archive) override;
  const RecorderOptions& options() const { return options_; }

 private:
  void resize_state(torch::IntArrayRef shape);
  void update(torch::Tensor min, torch::Tensor max, const torch::Tensor& mean_abs);
  /// Adds a batch to the histogram; `min` and `max` are its extremes over all processes.
  void count(const torch::Tensor& x, const torch::Tensor& min, const torch::Tensor& max);
  /// The range that the kind finds in the histogram.
  ValueRange searched_range() const;

  RecorderOptions options_;
  torch::Tensor min_val_;
  torch::Tensor max_val_;
  torch::Tensor mean_abs_;
  torch::Tensor recorded_;
  torch::Tensor counts_;  // undefined without a histogram, as the next two
  torch::Tensor limit_;
  torch::Tensor zeros_;
};

/// nnabla's scale for a recorder: max(max - min, 1e-24) or, for the abs-max kinds, 2 * max, divided by 255
/// (254 if narrow), exponent rounded; signed 8 bits, zero point 0. Only for comparison with nnabla's numbers:
/// such a scale may be 0, negative or NaN (its faults B28, B29, B31). Its inexact logarithm (B27) is not
/// reproduced.
torch::Tensor nnabla_scale(const Recorder& recorder, RangeWidth width, PowerOfTwo power_of_two);

}  // namespace qat
