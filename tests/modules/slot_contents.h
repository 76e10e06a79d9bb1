#pragma once

#include <qat/nn/nn.h>
#include <qat/quantizers/affine_quantizer.h>
#include <qat/quantizers/bias_quantizer.h>
#include <qat/recorders/recorder.h>

#include <memory>

/// Slots by short names, and what the tests put into them.
namespace slots {

using qat::nn::SlotId;

inline constexpr SlotId kInput{SlotId::Kind::kInput};
inline constexpr SlotId kSecondInput{SlotId::Kind::kInput, 1};
inline constexpr SlotId kWeight{SlotId::Kind::kWeight};
inline constexpr SlotId kBias{SlotId::Kind::kBias};
inline constexpr SlotId kOutput{SlotId::Kind::kOutput};

/// A per-tensor quantizer with a given scale, zero point 0.
inline std::shared_ptr<qat::AffineQuantizer> quantizer(float scale, qat::IntegerRange range = {}) {
  auto result = std::make_shared<qat::AffineQuantizer>(qat::AffineQuantizerOptions{.range = range});
  result->set_params(torch::tensor(scale), torch::tensor(0, torch::kInt));
  return result;
}

inline std::shared_ptr<qat::AffineQuantizer> unsigned_quantizer(float scale) {
  return quantizer(scale, {8, qat::Signedness::kUnsigned});
}

/// int8 narrow, one scale per channel of `axis` from the current weights.
inline std::shared_ptr<qat::AffineQuantizer> channel_quantizer(std::int64_t axis) {
  return std::make_shared<qat::AffineQuantizer>(
      qat::AffineQuantizerOptions{.range = {8, qat::Signedness::kSigned, qat::RangeWidth::kNarrow},
                                  .scale_source = qat::ScaleSource::kCurrent,
                                  .axis = axis});
}

inline std::shared_ptr<qat::BiasQuantizer> bias_quantizer() {
  return std::make_shared<qat::BiasQuantizer>();
}

inline std::shared_ptr<qat::Recorder> recorder() {
  return std::make_shared<qat::Recorder>();
}

/// The recorder in a slot.
inline qat::Recorder& recorder_of(const qat::nn::QuantizableLayer& layer, SlotId id) {
  return dynamic_cast<qat::Recorder&>(*layer.slot(id));
}

}  // namespace slots
