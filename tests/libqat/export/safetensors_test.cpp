#include <qat/export/safetensors.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdlib.h>
#include <string>

#include "support/catch.h"
#include "support/errors.h"

using namespace qat;
using qat::testing::error_lacks;

namespace {

struct Folder {
  std::filesystem::path path;
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "qat_safetensors_XXXXXX").string();
    path = mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string file(const char* name) const { return (path / name).string(); }
};

/// A file with this header and so many bytes behind it.
std::string file_of(const std::string& header, std::size_t bytes) {
  std::string text;
  for (int i = 0; i < 8; ++i)
    text += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  return text + header + std::string(bytes, '\1');
}

std::string refusal_lacks(const std::string& content, std::initializer_list<std::string> words) {
  const Folder folder;
  const auto path = folder.file("bad.safetensors");
  std::ofstream(path, std::ios::binary) << content;
  return error_lacks([&] { load_safetensors(path); }, words);
}

std::string entry(const std::string& name, const std::string& type, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + R"(": {"dtype": ")" + type + R"(", "shape": )" + shape + R"(, "data_offsets": )" +
         offsets + "}";
}

}  // namespace

TEST_CASE("Tensors of all types come back with their bits, shapes and metadata", "[export]") {
  const Folder folder;
  const auto path = folder.file("all.safetensors");
  std::map<std::string, torch::Tensor> tensors;
  for (const auto type : {torch::kDouble, torch::kFloat, torch::kHalf, torch::kBFloat16, torch::kLong,
                          torch::kInt, torch::kShort, torch::kChar, torch::kByte, torch::kBool}) {
    tensors[std::string("t.") + c10::toString(type)] = (torch::arange(12).reshape({3, 4}) % 5).to(type);
  }
  tensors["scalar"] = torch::scalar_tensor(0.1);
  tensors["empty"] = torch::empty({0, 3});
  tensors["transposed"] = torch::arange(6).reshape({2, 3}).t();
  tensors["nan \"quoted\" ü"] = torch::tensor({std::nanf(""), -0.0F});
  save_safetensors(path, tensors, {{"phase", "TRAINING"}, {"text", "a\nb"}});
  const auto loaded = load_safetensors(path);
  CHECK(loaded.metadata == std::map<std::string, std::string>{{"phase", "TRAINING"}, {"text", "a\nb"}});
  REQUIRE(loaded.tensors.size() == tensors.size());
  for (const auto& [name, tensor] : tensors) {
    INFO(name);
    const auto& found = loaded.tensors.at(name);
    CHECK(found.dtype() == tensor.dtype());
    CHECK(found.sizes() == tensor.sizes());
    CHECK(torch::equal(found.nan_to_num(9), tensor.nan_to_num(9)));
  }
  CHECK(loaded.tensors.at("nan \"quoted\" ü")[1].signbit().item<bool>());
  save_safetensors(path, {});
  CHECK(load_safetensors(path).tensors.empty());
}

TEST_CASE("The bytes are those that the format says", "[export]") {
  const Folder folder;
  const auto path = folder.file("two.safetensors");
  save_safetensors(path, {{"b", torch::tensor({1.0F})}, {"a", torch::tensor({2}, torch::kShort)}});
  std::ifstream stream(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
  std::string header =
      R"({"a":{"dtype":"I16","shape":[1],"data_offsets":[0,2]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})";
  header.append((8 - header.size() % 8) % 8, ' ');
  std::string expected;
  for (int i = 0; i < 8; ++i)
    expected += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  expected += header + std::string("\2\0\0\0\x80\x3f", 6);
  CHECK(bytes == expected);
}

TEST_CASE("Python reads a file with nothing but its standard library", "[export]") {
  const auto* python = std::getenv("QAT_PYTHON");
  if (python == nullptr) {
    WARN("skipped: set QAT_PYTHON to a Python");
    return;
  }
  const Folder folder;
  const auto path = folder.file("python.safetensors");
  save_safetensors(path, {{"layer.weight", torch::tensor({{1.5F, -2.0F}, {0.25F, 8.0F}})}},
                   {{"made", "here"}});
  std::ofstream(folder.file("read.py")) << R"(
import json, struct, sys
data = open(sys.argv[1], "rb").read()
length = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:8 + length])
assert header["__metadata__"] == {"made": "here"}, header
entry = header["layer.weight"]
assert entry["dtype"] == "F32" and entry["shape"] == [2, 2], entry
begin, end = entry["data_offsets"]
values = struct.unpack("<4f", data[8 + length + begin:8 + length + end])
assert values == (1.5, -2.0, 0.25, 8.0), values
)";
  const auto command = std::string("'") + python + "' '" + folder.file("read.py") + "' '" + path + "'";
  CHECK(std::system(command.c_str()) == 0);
}

TEST_CASE("case 126: files that are cut, damaged or something else are refused by name", "[export]") {
  CHECK(refusal_lacks("", {"bad.safetensors", "0 bytes"}) == "");
  CHECK(refusal_lacks("short", {"5 bytes"}) == "");
  CHECK(refusal_lacks(std::string("\xff\xff\xff\xff\xff\xff\xff\x7f and more", 17), {"cut", "header"}) == "");
  CHECK(refusal_lacks(file_of("[1, 2]", 0), {"JSON object"}) == "");
  CHECK(refusal_lacks(file_of("{nothing", 0), {"JSON object"}) == "");
  CHECK(refusal_lacks(file_of(R"({"a": 1})", 0), {"describes a", "dtype"}) == "");
  CHECK(refusal_lacks(file_of("{" + entry("a", "F8", "[1]", "[0, 1]") + "}", 1), {"type F8", "not known"}) ==
        "");
  CHECK(refusal_lacks(file_of("{" + entry("a", "F32", "[-1]", "[0, 4]") + "}", 4), {"a", "shape of -1"}) ==
        "");
  CHECK(refusal_lacks(file_of("{" + entry("a", "F32", "[1.5]", "[0, 4]") + "}", 4), {"shape of 1.5"}) == "");
  CHECK(refusal_lacks(file_of("{" + entry("a", "F32", "[4294967296, 4294967296, 8]", "[0, 4]") + "}", 4),
                      {"no memory"}) == "");
  CHECK(refusal_lacks(file_of("{" + entry("a", "F32", "[1]", "[0, 8]") + "}", 8), {"8 bytes", "need 4"}) ==
        "");
  CHECK(refusal_lacks(file_of("{" + entry("a", "F32", "[1]", "[4, 8]") + "}", 4), {"[4,8] of 4"}) == "");
  CHECK(refusal_lacks(file_of("{" + entry("a", "F32", "[1]", "[4, 0]") + "}", 4), {"[4,0]"}) == "");
  CHECK(refusal_lacks(file_of("{" + entry("a", "F32", "[1]", "[-4, 0]") + "}", 4), {"offsets"}) == "");
  CHECK(refusal_lacks(file_of("{" + entry("a", "F32", "[1]", "[0, 4]") + ", " +
                                  entry("b", "F32", "[1]", "[0, 4]") + "}",
                              4),
                      {"b over a"}) == "");
  CHECK(refusal_lacks(file_of("{" + entry("a", "F32", "[2]", "[0, 8]") + ", " +
                                  entry("b", "F32", "[1]", "[4, 8]") + "}",
                              8),
                      {"b over"}) == "");
  CHECK(refusal_lacks(file_of("{" + entry("a", "F32", "[1]", "[4, 8]") + "}", 8), {"4 bytes before a"}) ==
        "");
  CHECK(refusal_lacks(file_of("{" + entry("a", "F32", "[1]", "[0, 4]") + "}", 8), {"4 bytes at its end"}) ==
        "");
  CHECK(refusal_lacks(file_of("{" + entry("a", "F32", "[1]", "[0, 4]") + ", " +
                                  entry("a", "F32", "[1]", "[4, 8]") + "}",
                              8),
                      {"names a twice"}) == "");
  CHECK(refusal_lacks(file_of(R"({"__metadata__": {"a": 1}})", 0), {"metadata", "no text"}) == "");
  CHECK(refusal_lacks(file_of("{" + entry("a", "BOOL", "[1]", "[0, 1]") + "}", 1), {}) == "no exception");
  auto wrong_bool = file_of("{" + entry("a", "BOOL", "[1]", "[0, 1]") + "}", 1);
  wrong_bool.back() = '\7';
  CHECK(refusal_lacks(wrong_bool, {"a", "no bool"}) == "");
  CHECK(error_lacks([] { load_safetensors("/no/such/file"); }, {"/no/such/file", "No such file"}) == "");
  CHECK(error_lacks([] { load_safetensors("/tmp"); }, {"/tmp", "directory"}) == "");
}

TEST_CASE("Tensors that cannot be stored are refused and no file is left", "[export]") {
  const Folder folder;
  const auto path = folder.file("none.safetensors");
  const auto refused = [&](const std::string& name, const torch::Tensor& tensor) {
    return error_lacks([&] { save_safetensors(path, {{name, tensor}}); }, {"save_safetensors", name});
  };
  CHECK(refused("nothing", torch::Tensor()) == "");
  CHECK(refused("sparse", torch::eye(3).to_sparse()) == "");
  CHECK(refused("complex", torch::zeros({2}, torch::kComplexFloat)) == "");
  CHECK(refused("__metadata__", torch::zeros({2})) == "");
  CHECK(std::filesystem::is_empty(folder.path));
  CHECK(error_lacks(
            [&] {
              save_safetensors("/no/such/folder/x", {{"a", torch::ones({1})}});
            },
            {"/no/such/folder/x", "No such file"}) == "");
}
