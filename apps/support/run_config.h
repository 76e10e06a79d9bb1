#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace qat::apps {

/// What a user asked for cannot be done: an option, key or value is wrong. Programs exit with status 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Everything that decides the outcome of a training run. Equal configurations give equal models, bit for
/// bit, on the same machine. The allowed values stand in `settings()`.
struct RunConfig {
  std::string data = "fashion-mnist";  ///< name of the data set, see `load_dataset`.
  std::string data_path;               ///< folder of its files; empty: the usual place.
  std::int64_t limit = 0;              ///< train with the first so many samples; 0: all.
  std::int64_t batch_size = 128;       ///< samples in a step.
  bool augment = false;  ///< shift images by up to 2 pixels and mirror them (synthetic: shift only).

  std::string model = "resnet8";        ///< see `model_names()`.
  std::string preset = "integer_only";  ///< see `preset_config`.
  std::string bn_folding;               ///< "off", "once"; empty: as the preset says.
  std::string quantizer = "affine";     ///< family of the quantizers, see `make_quantizer`.
  std::string weight_quantizer;         ///< of weights; empty: `quantizer`.
  std::string activation_quantizer;     ///< of activations; empty: `quantizer`.
  std::int64_t weight_bits = 8;
  std::int64_t activation_bits = 8;
  std::int64_t input_bits = 8;     ///< of the network's input.
  std::int64_t residual_bits = 8;  ///< of the operands of Add, see QATConfig.
  /// TOML text of fields of QATConfig that have no key of their own: "skip_layers = ['head.*']".
  std::string scheduler;
  std::string weight_start = "statistics";  ///< where their scales start: "statistics" or "mse".
  std::string layer_weight_bits;            ///< "conv=8,fc=8": layers with another width.
  double weight_budget_kb = 0;              ///< the packed weights never take more; 0: no limit.
  double activation_budget_kb = 0;          ///< the same for the activations of a sample.
  std::string activation_budget = "sum";    ///< what it limits: "sum" or "largest".
  double budget_penalty = 0.1;              ///< weight of the squared excess of a size, in kB, in the loss.

  std::string init;                  ///< checkpoint to start from; empty: random weights.
  std::int64_t float_epochs = 4;     ///< passes over the data before quantization.
  std::int64_t record_batches = 50;  ///< batches whose ranges are recorded.
  std::int64_t qat_epochs = 2;       ///< passes over the data with quantizers.
  std::string optimizer = "sgd";
  double learning_rate = 0.1;    ///< at the start of the float epochs.
  double qat_learning_rate = 0;  ///< at the start of the QAT epochs; 0: a tenth of learning_rate.
  double quantizer_rate = 1;     ///< learned quantizer parameters train at this multiple of it.
  double momentum = 0.9;         ///< of sgd; the first beta of adam.
  double weight_decay = 0.0005;  ///< L2 penalty of weights, and of biases that folding makes.
  std::string schedule = "cosine";

  std::int64_t seed = 1;
  std::int64_t threads = 0;  ///< 0: as many as the machine has cores.
  std::string device = "cpu";

  bool operator==(const RunConfig&) const = default;

  /// Throws: UsageError naming key, value and allowed values; and for values that contradict each other,
  /// naming both.
  void validate() const;
  /// `layer_weight_bits` as a map. Throws: UsageError if it is not of that form.
  std::map<std::string, std::int64_t> weight_bits_by_layer() const;
  /// A complete TOML file: every key with its value, under a comment that explains it.
  std::string to_toml() const;
};

/// One key of a RunConfig: `weight_bits` in files and after `--set`, `--weight-bits` on the command line.
struct Setting {
  std::string key;
  std::string group;
  std::string description;
  std::string expected;  ///< the allowed values: "a whole number from 2 to 16".
  std::string empty;     ///< what an empty value, the default, stands for; "" where it is not allowed.
  enum class Kind { kText, kNumber, kFlag, kTable } kind = Kind::kText;  ///< kTable: the text is TOML.
  /// Stores a value that is given as text; returns false, and changes nothing, if it is not an allowed one.
  std::function<bool(RunConfig&, std::string_view)> assign;
  /// The value as text.
  std::function<std::string(const RunConfig&)> text;

  std::string option() const;  ///< "weight-bits"
};

/// All keys, group by group, in the order of RunConfig's members.
const std::vector<Setting>& settings();
/// The setting of that key; '-' and '_' are the same. nullptr if there is none.
const Setting* find_setting(std::string_view key);
/// Sets one key. `origin` begins the error message: "--weight-bits", "run.toml:3: weight_bits =".
/// Throws: UsageError naming value and allowed values.
void assign_setting(RunConfig& config, const Setting& setting, std::string_view value,
                    std::string_view origin);

/// Sets the keys that the TOML text holds; `name` stands for the file in messages.
/// Throws: UsageError with file and line for text that is not TOML, unknown keys (with the nearest known
/// one), values that are not allowed.
void apply_toml(RunConfig& config, std::string_view text, const std::string& name);
/// The same for a file. Throws: UsageError, also if it cannot be read.
void apply_toml_file(RunConfig& config, const std::filesystem::path& path);

}  // namespace qat::apps
