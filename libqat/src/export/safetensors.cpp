#include <qat/export/safetensors.h>

#include <c10/util/Exception.h>
#include <torch/types.h>

#include <nlohmann/json.hpp>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string_view>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>

namespace qat {
namespace {

using Header = nlohmann::ordered_json;

constexpr std::size_t kLengthBytes = 8;
constexpr const char* kMetadata = "__metadata__";

constexpr std::array<std::pair<torch::ScalarType, std::string_view>, 10> kStoredTypes{
    {{torch::kDouble, "F64"},
     {torch::kFloat, "F32"},
     {torch::kHalf, "F16"},
     {torch::kBFloat16, "BF16"},
     {torch::kLong, "I64"},
     {torch::kInt, "I32"},
     {torch::kShort, "I16"},
     {torch::kChar, "I8"},
     {torch::kByte, "U8"},
     {torch::kBool, "BOOL"}}};

std::string stored_type(const std::string& name, const torch::Tensor& tensor) {
  for (const auto& [type, text] : kStoredTypes) {
    if (tensor.scalar_type() == type) return std::string(text);
  }
  TORCH_CHECK_VALUE(false, "save_safetensors: ", name, " is of type ", tensor.scalar_type(),
                    ", which the format has no name for; convert it first");
}

/// Writes by way of another name; removes it if anything fails.
void write_whole(const std::string& path, const std::string& head,
                 const std::vector<torch::Tensor>& tensors) {
  const std::string temporary = path + ".partial" + std::to_string(getpid());
  errno = 0;
  std::ofstream stream(temporary, std::ios::binary);
  stream << head;
  for (const torch::Tensor& tensor : tensors)
    stream.write(static_cast<const char*>(tensor.const_data_ptr()),
                 static_cast<std::streamsize>(tensor.nbytes()));
  stream.close();
  std::error_code error;
  if (stream) {
    std::filesystem::rename(temporary, path, error);
  } else {
    error = std::error_code(errno ? errno : EIO, std::generic_category());
  }
  if (!error) return;
  std::error_code ignored;
  std::filesystem::remove(temporary, ignored);
  TORCH_CHECK(false, "save_safetensors: ", path, " cannot be written: ", error.message());
}

/// The parts of a file that is being read, with its name for messages.
class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), stream_(path, std::ios::binary | std::ios::ate) {
    const auto end = stream_.tellg();
    check(!std::filesystem::is_directory(path) && end >= 0,
          "cannot be read: ", std::generic_category().message(errno ? errno : EISDIR));
    size_ = static_cast<std::uint64_t>(end);
    stream_.seekg(0);
    check(size_ >= kLengthBytes, "is no safetensors file: it has ", size_, " bytes");
  }

  template <class... Parts>
  void check(bool holds, const Parts&... parts) const {
    TORCH_CHECK(holds, "load_safetensors: ", path_, " ", parts...);
  }

  Header header() {
    std::array<unsigned char, kLengthBytes> bytes{};
    stream_.read(reinterpret_cast<char*>(bytes.data()), kLengthBytes);
    std::uint64_t length = 0;
    for (std::size_t i = kLengthBytes; i-- > 0;)
      length = length << 8 | bytes[i];
    check(length <= size_ - kLengthBytes, "is cut or no safetensors file: its header should have ", length,
          " bytes, ", size_ - kLengthBytes, " follow");
    std::string text(length, '\0');
    stream_.read(text.data(), static_cast<std::streamsize>(length));
    check(stream_.good(), "cannot be read to the end of its header");
    begin_ = kLengthBytes + length;
    // Names that stand twice would be lost in an object: they are looked for while parsing.
    std::vector<std::vector<std::string>> open;
    std::string twice;
    const auto note = [&](int, Header::parse_event_t event, Header& parsed) {
      if (event == Header::parse_event_t::object_start) open.emplace_back();
      if (event == Header::parse_event_t::object_end) open.pop_back();
      if (event == Header::parse_event_t::key) {
        const auto key = parsed.get<std::string>();
        for (const auto& earlier : open.back())
          if (earlier == key) twice = key;
        open.back().push_back(key);
      }
      return true;
    };
    auto header = Header::parse(text, note, /*allow_exceptions=*/false);
    check(header.is_object(), "is no safetensors file: its header is no JSON object");
    check(twice.empty(), "names ", twice, " twice");
    return header;
  }

  std::uint64_t payload() const { return size_ - begin_; }

  void read(std::uint64_t offset, torch::Tensor& tensor) {
    stream_.seekg(static_cast<std::streamoff>(begin_ + offset));
    stream_.read(static_cast<char*>(tensor.mutable_data_ptr()),
                 static_cast<std::streamsize>(tensor.nbytes()));
    check(stream_.good(), "cannot be read to its end");
  }

 private:
  std::string path_;
  std::ifstream stream_;
  std::uint64_t size_ = 0;
  std::uint64_t begin_ = 0;
};

/// Where a tensor lies.
struct Entry {
  torch::ScalarType type = torch::kFloat;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

Entry parse_entry(const Reader& reader, const std::string& name, const Header& json) {
  const bool is_complete = json.is_object() && json.contains("dtype") && json["dtype"].is_string() &&
                           json.contains("shape") && json["shape"].is_array() &&
                           json.contains("data_offsets") && json["data_offsets"].is_array() &&
                           json["data_offsets"].size() == 2;
  reader.check(is_complete, "describes ", name, " without dtype, shape and two data_offsets");
  Entry entry;
  const auto text = json["dtype"].get<std::string>();
  const auto* const type = std::find_if(kStoredTypes.begin(), kStoredTypes.end(),
                                        [&](const auto& known) { return known.second == text; });
  reader.check(type != kStoredTypes.end(), "gives ", name, " the type ", text, ", which is not known here");
  entry.type = type->first;

  const auto natural = [](const Header& number) { return number.is_number_unsigned(); };
  std::uint64_t bytes = c10::elementSize(entry.type);
  for (const auto& size : json["shape"]) {
    reader.check(natural(size) && size.get<std::uint64_t>() <=
                                      static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()),
                 "gives ", name, " a shape of ", size.dump());
    const auto count = size.get<std::uint64_t>();
    reader.check(count == 0 || bytes <= std::numeric_limits<std::uint64_t>::max() / count, "gives ", name,
                 " a shape that no memory can hold");
    bytes *= count;
    entry.shape.push_back(static_cast<std::int64_t>(count));
  }
  const auto& offsets = json["data_offsets"];
  reader.check(natural(offsets[0]) && natural(offsets[1]), "gives ", name, " offsets of ", offsets.dump());
  entry.begin = offsets[0].get<std::uint64_t>();
  entry.end = offsets[1].get<std::uint64_t>();
  reader.check(entry.begin <= entry.end && entry.end <= reader.payload(), "gives ", name, " the bytes ",
               offsets.dump(), " of ", reader.payload());
  reader.check(entry.end - entry.begin == bytes, "gives ", name, " ", entry.end - entry.begin,
               " bytes; its shape and type need ", bytes);
  return entry;
}

}  // namespace

void save_safetensors(const std::string& path, const std::map<std::string, torch::Tensor>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  Header header = Header::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  std::vector<torch::Tensor> stored;
  std::uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    TORCH_CHECK_VALUE(tensor.defined() && tensor.layout() == torch::kStrided, "save_safetensors: ", name,
                      tensor.defined() ? " is sparse; make it dense first" : " is an undefined tensor");
    TORCH_CHECK_VALUE(name != kMetadata, "save_safetensors: ", kMetadata, " is no name for a tensor");
    const auto type = stored_type(name, tensor);
    stored.push_back(tensor.detach().to(torch::kCPU).contiguous().resolve_neg());
    const auto end = offset + stored.back().nbytes();
    header[name] = {{"dtype", type}, {"shape", tensor.sizes().vec()}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  auto text = header.dump();
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
  std::string head;
  for (std::size_t i = 0; i < kLengthBytes; ++i)
    head += static_cast<char>(text.size() >> (8 * i) & 0xFF);
  write_whole(path, head + text, stored);
}

Safetensors load_safetensors(const std::string& path) {
  Reader reader(path);
  const Header header = reader.header();
  Safetensors result;
  std::map<std::uint64_t, std::pair<std::uint64_t, std::string>> places;  // begin -> end, name
  std::vector<std::pair<std::string, Entry>> entries;
  for (const auto& [name, json] : header.items()) {
    if (name == kMetadata) {
      reader.check(json.is_object(), "holds metadata that is no object of texts");
      for (const auto& [key, value] : json.items()) {
        reader.check(value.is_string(), "holds metadata \"", key, "\" that is no text");
        result.metadata[key] = value.get<std::string>();
      }
      continue;
    }
    const auto& [stored_name, entry] = entries.emplace_back(name, parse_entry(reader, name, json));
    if (entry.begin == entry.end) continue;
    const auto [place, is_new] = places.emplace(entry.begin, std::pair(entry.end, stored_name));
    reader.check(is_new, "lays ", name, " over ", place->second.second);
  }
  std::uint64_t covered = 0;
  for (const auto& [begin, place] : places) {
    reader.check(begin >= covered, "lays ", place.second, " over the tensor before it");
    reader.check(begin == covered, "leaves ", begin - covered, " bytes before ", place.second, " to nobody");
    covered = place.first;
  }
  reader.check(covered == reader.payload(), "leaves ", reader.payload() - covered,
               " bytes at its end to nobody");
  for (const auto& [name, entry] : entries) {
    auto tensor = torch::empty(entry.shape, entry.type);
    if (tensor.nbytes() > 0) reader.read(entry.begin, tensor);
    // Any byte but 0 and 1 is no bool.
    if (entry.type == torch::kBool && tensor.numel() > 0)
      reader.check((tensor.view(torch::kByte) <= 1).all().item<bool>(), "holds bytes in ", name,
                   " that are no bool");
    result.tensors.emplace(name, tensor);
  }
  return result;
}

}  // namespace qat
