#pragma once

#include <qat/autograd/fake_quantize.h>
#include <qat/numerics/affine_params.h>
#include <qat/quantizers/make_quantizer.h>
#include <qat/recorders/recorder.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace qat {

/// When BatchNorm layers are folded into the layer before them. In text: "off", "once".
enum class BatchNormFolding : std::int8_t {
  kOff,
  kOnce,  ///< at the transition to RECORDING.
};

/// Which codes activations get. In text: "signed", "unsigned", "auto". kUnsigned and kAuto need a recorder
/// that keeps minima (any but AbsMax, MaxMax and MaxMva).
enum class ActivationRange : std::int8_t {
  kSigned,    ///< signed; zero point 0, unless QATConfig::zero_point.
  kUnsigned,  ///< unsigned; zero point 0, unless QATConfig::zero_point; negative data is refused then.
  kAuto,      ///< unsigned with zero point 0 where the recorded range starts at 0, else unsigned with an even
              ///< zero point (families without one: signed).
};

/// Where quantizers stand. In text: "BEFORE", "BOTH" (nnabla's names).
enum class RecorderPosition : std::int8_t {
  kBefore,  ///< at what quantized layers read.
  kBoth,    ///< and at what they make, if another node reads it: float layers too get quantized tensors.
};

/// What a deployed model computes with. In text: "SIM_QNN", "QNN", "MIXED_QNN" (nnabla's names).
enum class PrecisionMode : std::int8_t {
  kSimQnn,    ///< real numbers that lie on the grids of the codes.
  kQnn,       ///< integers.
  kMixedQnn,  ///< integers where layers are quantized, else float.
};

/// What the activation budget limits. In text: "sum", "largest".
enum class ActivationBudget : std::int8_t {
  kSum,      ///< the bytes of all quantized activations of a sample.
  kLargest,  ///< the bytes of the largest one.
};

/// How a model is quantized and when. Defaults are those of nnabla's QATConfig, under its names, with its
/// faults fixed.
///
/// Fields that name single layers take module paths ("features.0") and patterns, in which `*` stands for any
/// text, dots too ("features.*", "*.conv1"). The path itself comes first, then the longest of the patterns
/// that fit (of equally long ones the first in alphabetical order). A pattern that fits no layer is refused.
struct QATConfig {
  /// Iterations (calls of step()) before recording starts, and before training with quantizers starts;
  /// counted from 0. 0 and -1: recording starts with the first step, training by an explicit call of
  /// start_training(). -1 and -1: both by explicit calls. Otherwise 0 <= niter_to_recording <
  /// niter_to_training.
  std::int64_t niter_to_recording = 0;
  std::int64_t niter_to_training = -1;

  std::int64_t weight_bits = 8;      ///< 2 to 16.
  std::int64_t activation_bits = 8;  ///< 2 to 16.
  std::int64_t input_bits = 0;       ///< of tensors quantized in input slots (the model's inputs, results of
                                     ///< functional code), 2 to 16; 0: activation_bits.
  /// The fewest bits of tensors that Add or Sub read, 2 to 16; 0: as others. Where they are wider than
  /// activation_bits by that, layers with weights that read such a result of another layer narrow it to
  /// activation_bits: products are as narrow as asked for, sums are not.
  std::int64_t residual_bits = 0;
  /// Widths of single layers: of the weight (2 to 16; dorefa 2 to 8, binary 1), and of the activation whose
  /// quantizer the layer's slots hold. A path of a layer that holds no such quantizer is refused before
  /// training.
  std::map<std::string, std::int64_t> layer_weight_bits = {};
  std::map<std::string, std::int64_t> layer_activation_bits = {};
  /// Families of quantizers, see make_quantizer. Where the width learns, the bits above are the most that it
  /// may have.
  std::string weight_quantizer = "affine";
  std::string activation_quantizer = "affine";
  /// Families of single layers, as the widths above.
  std::map<std::string, std::string> layer_weight_quantizer = {};
  std::map<std::string, std::string> layer_activation_quantizer = {};
  /// Where the scales of weights start (WeightStart::kMse: by a search, see make_quantizer). Affine weights
  /// need weight_range_current false for a search: their scales stay where they start.
  WeightStart weight_start = WeightStart::kStatistics;
  bool channel_wise = false;  ///< a weight scale per output channel (embeddings stay per tensor).
  bool narrow_range = false;  ///< weights and signed activations without the lowest code.
  bool channel_last = false;  ///< keeps weights of 2d and 3d layers in channels-last memory order, which
                              ///< their outputs then have too; axes and results mean the same.
  ActivationRange activation_range = ActivationRange::kSigned;
  /// Signed and unsigned activations get a zero point (an even one) where their recorded range is not
  /// symmetric; else it is 0. Families affine and lsq_plus; kAuto decides by itself. Weights never have one.
  bool zero_point = false;
  PrecisionMode precision_mode = PrecisionMode::kSimQnn;  ///< kept for the deployed model; training always
                                                          ///< simulates.
  PowerOfTwo pow2 = PowerOfTwo::kRound;                   ///< of weight and activation scales.
  Rounding round_mode = Rounding::kHalfToEven;
  StraightThrough straight_through = StraightThrough::kUnclipped;

  RecorderKind recorder_weight = RecorderKind::kMinMaxMinMax;
  RecorderKind recorder_activation = RecorderKind::kMaxMva;
  double recorder_decay = 0.99;        ///< of moving averages, in [0, 1).
  double recorder_percentile = 99.99;  ///< of Percentile recorders, in (50, 100].
  RecorderPosition recorder_position = RecorderPosition::kBefore;
  /// Positive: the model's inputs are codes already, real = input_scale * code with unsigned codes and zero
  /// point 0 (images: 1.0 / 255). Nothing is recorded for them. 0: their range is recorded.
  double input_scale = 0.0;
  /// Weight scales follow the current weights at every step (true) or keep the recorded range (false).
  bool weight_range_current = false;

  /// Class names ("Conv2d") whose inputs and weights are quantized; empty: every layer that computes.
  /// BatchNorm never is: it is folded or stays float (with an empty list the inputs of one that is folded
  /// into itself are quantized).
  std::vector<std::string> record_layers = {};
  /// Layers of these classes with no such layer before (after) them keep a float computation.
  std::vector<std::string> skip_inputs_layers = {"Conv1d",          "Conv2d",          "Conv3d",
                                                 "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"};
  std::vector<std::string> skip_outputs_layers = {"Linear"};
  /// Layers that keep a float computation, by path or pattern: their inputs and weights are not quantized for
  /// them.
  std::vector<std::string> skip_layers = {};
  bool skip_bias = false;  ///< leave biases in float; else int32 at scale_x * scale_w, zero point 0.

  /// Where the model computes: the constructor of QATScheduler moves model and example inputs there. "cpu",
  /// "cuda", "cuda:1", or nnabla's "cudnn" (cuda); empty: where they are.
  std::string ext_name = "";

  /// RECORDING holds the parameters: backward() and step() run and change nothing. false: they go on
  /// training.
  bool hold_parameters = true;
  /// Multiplies every group's rate once, at the transition to TRAINING; positive.
  double learning_rate_scale = 0.1;
  BatchNormFolding bn_folding = BatchNormFolding::kOff;
  /// BatchNorms that are not folded into a layer become trainable scales and shifts of their channels, from
  /// their running statistics, at the transition to RECORDING; with bn_folding or without.
  bool bn_self_folding = false;

  /// Learned parameters of quantizers have a group of their own in the optimizer, without weight decay; its
  /// rate is that of the first group times this.
  double quantizer_learning_rate_scale = 1.0;
  /// The packed weights (codes at their width, float32 scales, int32 biases) never take more than so many kB
  /// (1024 bytes); 0: no limit. Needs a weight quantizer whose width learns.
  double weight_budget_kb = 0.0;
  /// The quantized activations of one sample, at their widths, take at most so many kB; 0: no limit.
  double activation_budget_kb = 0.0;
  ActivationBudget activation_budget = ActivationBudget::kSum;
  /// lambda of the penalty lambda * max(0, size - budget)^2 that QATScheduler::penalty() gives for each
  /// budget.
  double budget_penalty = 0.1;

  /// nnabla's `dtype`: "int8", "uint8", or any such name of 2 to 16 bits. Sets weight_bits, activation_bits
  /// and activation_range (signed or unsigned; weights stay signed). Throws: c10::ValueError for other texts.
  void set_dtype(std::string_view name);

  /// Checks every field and their combinations. Throws: c10::ValueError naming field, value and allowed
  /// values.
  void validate() const;

  bool operator==(const QATConfig&) const = default;
};

/// QATConfig with folding, and record_layers as nnabla's TensorRT configuration lists them.
QATConfig tensorrt_config();
/// Nothing skipped, every BatchNorm that can be is folded, int8 narrow weights per channel from their current
/// maximum, uint8 activations, clipped straight-through: a network that runs on integers from input to
/// output. Transitions by explicit calls, learning rate unchanged. Default of qat-train.
QATConfig integer_only_config();
/// integer_only for ONNX Runtime: what its fused integer operators compute to the last code. Weights and
/// activations of 8 bits, the outputs of all quantized layers too.
QATConfig onnxruntime_config();
/// "default", "tensorrt", "integer_only", "onnxruntime". Throws: c10::ValueError listing the names.
QATConfig preset_config(std::string_view name);

/// All fields as a JSON object, keys as the fields' names, enumerations by their names. For checkpoints.
std::string to_json(const QATConfig& config);
/// Reads such an object; fields that it lacks keep the values of `base`. A key "dtype" comes first, see
/// QATConfig::set_dtype: other fields of the object change what it sets. The result is validated.
/// Throws: c10::ValueError naming an unknown key with the nearest known one, a wrong type or value.
QATConfig parse_config(std::string_view json, QATConfig base = {});

}  // namespace qat
