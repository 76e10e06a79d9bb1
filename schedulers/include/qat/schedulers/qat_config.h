#pragma once

#include <qat/autograd/fake_quantize.h>
#include <qat/numerics/affine_params.h>
#include <qat/recorders/recorder.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace qat {

/// When BatchNorm layers are folded into the layer before them. In text: "off", "once".
enum class BatchNormFolding : std::int8_t {
  kOff,
  kOnce,  ///< at the transition to RECORDING.
};

/// Which codes activations get. In text: "signed", "auto".
enum class ActivationRange : std::int8_t {
  kSigned,  ///< signed, symmetric: zero point 0.
  kAuto,    ///< unsigned with zero point 0 where the recorded range starts at 0, else unsigned affine with an
            ///< even zero point. Needs a recorder that keeps minima (MinMaxMinMax, MinMaxMva).
};

/// How a model is quantized and when. Defaults are those of nnabla's QATConfig, under its names, with its
/// faults fixed.
struct QATConfig {
  /// Iterations (calls of step()) before recording starts, and before training with quantizers starts;
  /// counted from 0. 0 and -1: recording starts with the first step, training by an explicit call of
  /// start_training(). -1 and -1: both by explicit calls. Otherwise 0 <= niter_to_recording <
  /// niter_to_training.
  std::int64_t niter_to_recording = 0;
  std::int64_t niter_to_training = -1;

  std::int64_t weight_bits = 8;      ///< 2 to 16.
  std::int64_t activation_bits = 8;  ///< 2 to 16.
  bool channel_wise = false;         ///< a weight scale per output channel (embeddings stay per tensor).
  bool narrow_range = false;         ///< weights and signed activations without the lowest code.
  ActivationRange activation_range = ActivationRange::kSigned;
  PowerOfTwo pow2 = PowerOfTwo::kRound;  ///< of weight and activation scales.
  Rounding round_mode = Rounding::kHalfToEven;
  StraightThrough straight_through = StraightThrough::kUnclipped;

  RecorderKind recorder_weight = RecorderKind::kMinMaxMinMax;
  RecorderKind recorder_activation = RecorderKind::kMaxMva;
  double recorder_decay = 0.99;  ///< of moving averages, in [0, 1).
  /// Weight scales follow the current weights at every step (true) or keep the recorded range (false).
  bool weight_range_current = false;

  /// Class names ("Conv2d") whose inputs and weights are quantized; empty: every layer that computes.
  /// BatchNorm never is: it is folded or stays float.
  std::vector<std::string> record_layers = {};
  /// Layers of these classes with no such layer before (after) them keep a float computation.
  std::vector<std::string> skip_inputs_layers = {"Conv1d",          "Conv2d",          "Conv3d",
                                                 "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"};
  std::vector<std::string> skip_outputs_layers = {"Linear"};
  bool skip_bias = false;  ///< leave biases in float; else int32 at scale_x * scale_w, zero point 0.

  /// RECORDING holds the parameters: backward() and step() run and change nothing. false: they go on
  /// training.
  bool hold_parameters = true;
  /// Multiplies every group's rate once, at the transition to TRAINING; positive.
  double learning_rate_scale = 0.1;
  BatchNormFolding bn_folding = BatchNormFolding::kOff;

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
/// "default", "tensorrt", "integer_only". Throws: c10::ValueError listing the names.
QATConfig preset_config(std::string_view name);

/// All fields as a JSON object, keys as the fields' names, enumerations by their names. For checkpoints.
std::string to_json(const QATConfig& config);
/// Reads such an object; fields that it lacks keep the values of `base`. The result is validated.
/// Throws: c10::ValueError naming an unknown key, a wrong type or value.
QATConfig parse_config(std::string_view json, QATConfig base = {});

}  // namespace qat
