#include "support/run_state.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <torch/types.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>

namespace qat {

NLOHMANN_JSON_SERIALIZE_ENUM(QuantizedTensor::Kind, {{QuantizedTensor::Kind::kWeight, "weight"},
                                                     {QuantizedTensor::Kind::kActivation, "activation"}})
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(QuantizedTensor, layer, slot, kind, bits, elements, bytes)

namespace nn {

/// As text: a ratio may be infinite or NaN, which JSON has no numbers for.
void to_json(nlohmann::json& json, const SlotQuality& quality) {
  json = {quality.layer,   quality.slot,   quality.bits,       fmt::format("{}", quality.qsnr_db),
          quality.clipped, quality.levels, quality.used_levels};
}
void from_json(const nlohmann::json& json, SlotQuality& quality) {
  quality = {json.at(0).get<std::string>(),  json.at(1).get<std::string>(),
             json.at(2).get<std::int64_t>(), std::strtod(json.at(3).get<std::string>().c_str(), nullptr),
             json.at(4).get<double>(),       json.at(5).get<std::int64_t>(),
             json.at(6).get<std::int64_t>()};
}

}  // namespace nn

namespace apps {

NLOHMANN_JSON_SERIALIZE_ENUM(RunState::Stage, {{RunState::Stage::kFloat, "float"},
                                               {RunState::Stage::kRecording, "recording"},
                                               {RunState::Stage::kQuantized, "quantized"}})
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(EpochProgress, steps, samples, correct, loss_sum, learning_rate, seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MetricsRow, phase, epoch, loss, train_accuracy, test_accuracy,
                                   learning_rate, seconds, packed_bytes, weight_bits, mean_bits,
                                   activation_bytes, mean_activation_bits)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LayerRow, epoch, tensor, budget_bytes, quality)

namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";

}  // namespace

std::string random_state() {
  auto generator = at::globalContext().defaultGenerator(torch::kCPU);
  const auto bytes = generator.get_state();
  std::string text;
  for (std::int64_t i = 0; i < bytes.numel(); ++i) {
    const auto byte = bytes.const_data_ptr<std::uint8_t>()[i];
    text += kHexDigits[byte >> 4];
    text += kHexDigits[byte & 15];
  }
  return text;
}

void set_random_state(const std::string& text) {
  auto generator = at::globalContext().defaultGenerator(torch::kCPU);
  const auto digit = [&](std::size_t i) { return kHexDigits.find(text[i]); };
  TORCH_CHECK(text.size() == 2 * static_cast<std::size_t>(generator.get_state().numel()) &&
                  text.find_first_not_of(kHexDigits) == std::string::npos,
              "the state of the random generator has ", text.size(), " digits; this program needs ",
              2 * generator.get_state().numel());
  auto bytes = torch::empty({static_cast<std::int64_t>(text.size() / 2)}, torch::kUInt8);
  for (std::size_t i = 0; i < text.size() / 2; ++i)
    bytes.mutable_data_ptr<std::uint8_t>()[i] =
        static_cast<std::uint8_t>(16 * digit(2 * i) + digit(2 * i + 1));
  generator.set_state(bytes);
}

std::string to_json(const RunState& state) {
  return nlohmann::json{{"stage", state.stage},
                        {"epoch", state.epoch},
                        {"progress", state.progress},
                        {"passes", state.passes},
                        {"stage_seconds", state.stage_seconds},
                        {"stage_steps", state.stage_steps},
                        {"seconds", state.seconds},
                        {"scheduler", state.scheduler},
                        {"random", state.random},
                        {"rows", state.found.rows},
                        {"layers", state.found.layers},
                        {"float_accuracy", state.found.float_accuracy},
                        {"float_size_bytes", state.found.float_size_bytes},
                        {"seconds_per_step", state.found.seconds_per_step}}
      .dump();
}

RunState parse_run_state(const std::string& text, const std::string& origin) {
  try {
    const auto json = nlohmann::json::parse(text);
    RunState state;
    json.at("stage").get_to(state.stage);
    json.at("epoch").get_to(state.epoch);
    json.at("progress").get_to(state.progress);
    json.at("passes").get_to(state.passes);
    json.at("stage_seconds").get_to(state.stage_seconds);
    json.at("stage_steps").get_to(state.stage_steps);
    json.at("seconds").get_to(state.seconds);
    json.at("scheduler").get_to(state.scheduler);
    json.at("random").get_to(state.random);
    json.at("rows").get_to(state.found.rows);
    json.at("layers").get_to(state.found.layers);
    json.at("float_accuracy").get_to(state.found.float_accuracy);
    json.at("float_size_bytes").get_to(state.found.float_size_bytes);
    json.at("seconds_per_step").get_to(state.found.seconds_per_step);
    constexpr std::int64_t kMost = std::int64_t{1} << 40;
    const auto counts = [](std::int64_t value) { return value >= 0 && value <= kMost; };
    const bool is_empty = state.progress.steps == 0 && state.progress.samples == 0;
    TORCH_CHECK(
        nlohmann::json(state.stage) == json.at("stage") && counts(state.epoch) && counts(state.passes) &&
            counts(state.stage_steps) && counts(state.progress.steps) && counts(state.progress.samples) &&
            counts(state.progress.correct) &&
            (is_empty || (state.progress.steps > 0 && state.progress.samples > 0 && state.passes > 0)),
        origin, ": the state of the run has counts that no run has");
    return state;
  } catch (const nlohmann::json::exception& error) {
    TORCH_CHECK(false, origin, ": the state of the run cannot be read: ", error.what());
  }
}

}  // namespace apps
}  // namespace qat
