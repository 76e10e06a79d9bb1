#include "support/model_description.h"

#include <qat/version.h>

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

namespace qat::apps {
namespace {

using nlohmann::json;

/// Reads one JSON entry.
template <class Value>
Value parse_entry(const std::map<std::string, std::string>& entries, const std::string& key,
                  const std::string& origin) {
  const auto found = entries.find(key);
  TORCH_CHECK(found != entries.end(), origin, ": has no entry '", key, "'; it was not written by qat-train");
  try {
    return json::parse(found->second).get<Value>();
  } catch (const json::exception&) {
    TORCH_CHECK(false, origin, ": entry '", key,
                "' is not what qat-train writes: ", found->second.substr(0, 80));
  }
}

}  // namespace

std::map<std::string, std::string> ModelDescription::to_entries() const {
  return {{"config", config.to_toml()},
          {"version", version()},
          {"phase", phase},
          {"model", config.model},
          {"classes", std::to_string(classes)},
          {"input_shape", json(input_shape).dump()},
          {"input_mean", json(input_mean).dump()},
          {"input_std", json(input_std).dump()},
          {"layer_bits", layer_bits},
          {"packed_bytes", std::to_string(packed_bytes)}};
}

ModelDescription ModelDescription::from_entries(const std::map<std::string, std::string>& entries,
                                                const std::string& origin) {
  ModelDescription result;
  result.classes = parse_entry<std::int64_t>(entries, "classes", origin);
  result.input_shape = parse_entry<std::vector<std::int64_t>>(entries, "input_shape", origin);
  result.input_mean = parse_entry<std::vector<double>>(entries, "input_mean", origin);
  result.input_std = parse_entry<std::vector<double>>(entries, "input_std", origin);
  for (const char* key : {"config", "phase"})
    TORCH_CHECK(entries.count(key), origin, ": has no entry '", key, "'; it was not written by qat-train");
  result.phase = entries.at("phase");
  if (entries.count("layer_bits")) result.layer_bits = entries.at("layer_bits");
  if (entries.count("packed_bytes"))
    result.packed_bytes = parse_entry<std::int64_t>(entries, "packed_bytes", origin);
  try {
    apply_toml(result.config, entries.at("config"), origin + ", entry 'config'");
  } catch (const UsageError& error) {
    TORCH_CHECK(false, error.what());
  }
  return result;
}

}  // namespace qat::apps
