#include "integer/packed_codes_check.h"
#include <qat/integer/packed_codes.h>
#include <qat/numerics/packed_size.h>

#include <c10/util/Exception.h>
#include <torch/types.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace qat {
namespace {

/// "[1, 0, 2]": where element `index` of a contiguous tensor of this shape is.
std::string position_text(std::int64_t index, torch::IntArrayRef shape) {
  std::string text;
  for (std::size_t d = shape.size(); d-- > 0; index /= shape[d]) {
    text = std::to_string(index % shape[d]) + (text.empty() ? "" : ", ") + text;
  }
  return "[" + text + "]";
}

/// Collects bits, lowest first, into bytes.
class BitWriter {
 public:
  explicit BitWriter(std::int64_t bytes) { bytes_.reserve(static_cast<std::size_t>(bytes)); }

  void put(std::uint32_t value, int bits) {
    pending_ |= value << held_;
    for (held_ += bits; held_ >= 8; held_ -= 8) {
      bytes_.push_back(static_cast<std::uint8_t>(pending_ & 0xFFU));
      pending_ >>= 8U;
    }
  }

  std::vector<std::uint8_t> finish() {
    if (held_ > 0) bytes_.push_back(static_cast<std::uint8_t>(pending_));
    return std::move(bytes_);
  }

 private:
  std::vector<std::uint8_t> bytes_;
  std::uint32_t pending_ = 0;  ///< at most 7 bits of before and 16 new ones.
  int held_ = 0;
};

/// Hands out what a BitWriter collected.
class BitReader {
 public:
  explicit BitReader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  std::uint32_t take(int bits) {
    for (; held_ < bits; held_ += 8)
      pending_ |= std::uint32_t{bytes_[next_++]} << held_;
    const std::uint32_t value = pending_ & ((1U << bits) - 1U);
    pending_ >>= bits;
    held_ -= bits;
    return value;
  }

 private:
  std::span<const std::uint8_t> bytes_;
  std::size_t next_ = 0;
  std::uint32_t pending_ = 0;
  int held_ = 0;
};

}  // namespace

namespace detail {

std::int64_t element_count(torch::IntArrayRef shape, const std::string& who) {
  std::int64_t count = 1;
  bool is_empty = false;
  for (const std::int64_t size : shape) {
    TORCH_CHECK_VALUE(size >= 0 && size <= kMaxPackedCount, who, ": expected a shape with sizes of 0 to ",
                      kMaxPackedCount, ", got ", shape);
    is_empty = is_empty || size == 0;
    // Sizes of 0 count as 1: the strides of an empty tensor must not overflow either.
    const std::int64_t factor = std::max<std::int64_t>(size, 1);
    TORCH_CHECK_VALUE(count <= kMaxPackedCount / factor, who, ": expected a shape of at most ",
                      kMaxPackedCount, " elements (sizes of 0 counted as 1), got ", shape);
    count *= factor;
  }
  return is_empty ? 0 : count;
}

void check_packed_codes(std::span<const std::uint8_t> bytes, torch::IntArrayRef shape, std::int64_t bits,
                        const std::string& who) {
  const std::int64_t count = element_count(shape, who);
  const std::int64_t expected = packed_code_bytes(count, bits);
  const auto got = static_cast<std::int64_t>(bytes.size());
  TORCH_CHECK_VALUE(got == expected, who, ": codes of shape ", shape, " at ", bits, " bits take ", expected,
                    " bytes, got ", got,
                    got < expected ? "; the data are truncated" : "; the data are too long");
  const std::int64_t used = count * bits % 8;
  TORCH_CHECK_VALUE(used == 0 || bytes.back() >> used == 0, who,
                    ": expected zero bits after the last code, got the last byte ",
                    static_cast<int>(bytes.back()), " of which ", used,
                    " bits are used; the data are damaged");
}

}  // namespace detail

std::vector<std::uint8_t> pack_codes(const torch::Tensor& codes, std::int64_t bits, Signedness signedness) {
  const IntegerRange range(bits, signedness);
  TORCH_CHECK_VALUE(codes.defined() && codes.scalar_type() == torch::kInt,
                    "qat::pack_codes: expected int32 codes, got ",
                    codes.defined() ? codes.toString() : "an undefined tensor");
  const auto values = codes.detach().to(torch::kCPU).contiguous();
  const auto* data = values.const_data_ptr<std::int32_t>();
  const std::uint32_t mask = (1U << bits) - 1U;
  BitWriter writer(packed_code_bytes(values.numel(), bits));
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    const std::int32_t code = data[i];
    TORCH_CHECK_VALUE(code >= range.qmin() && code <= range.qmax(), "qat::pack_codes: code ", code,
                      " at position ", position_text(i, values.sizes()), " is outside of ", range.to_string(),
                      ", [", range.qmin(), ", ", range.qmax(), "]; pack it with more bits or clamp it");
    writer.put(static_cast<std::uint32_t>(code) & mask, static_cast<int>(bits));
  }
  return writer.finish();
}

torch::Tensor unpack_codes(std::span<const std::uint8_t> bytes, torch::IntArrayRef shape, std::int64_t bits,
                           Signedness signedness) {
  const IntegerRange range(bits, signedness);
  detail::check_packed_codes(bytes, shape, bits, "qat::unpack_codes");
  const auto codes = torch::empty(shape, torch::kInt);
  auto* values = codes.mutable_data_ptr<std::int32_t>();
  BitReader reader(bytes);
  for (std::int64_t i = 0; i < codes.numel(); ++i) {
    const auto code = static_cast<std::int32_t>(reader.take(static_cast<int>(bits)));
    values[i] = code > range.qmax() ? code - (std::int32_t{1} << bits) : code;
  }
  return codes;
}

}  // namespace qat
