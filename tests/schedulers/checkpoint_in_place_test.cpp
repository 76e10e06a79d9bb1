// Loading into a model that is in use: what an optimizer knows stays, whether loading succeeds or fails.
#include "learned_net.h"
#include "schedulers/checkpoint_file.h"
#include <qat/schedulers/checkpoint.h>

#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/errors.h"
#include "support/tensor_matchers.h"

using namespace qat;
using namespace qat::testing;

namespace {

/// All parameters and buffers of a model, by name.
std::map<std::string, torch::Tensor> tensors_of(nn::Sequential& net) {
  std::map<std::string, torch::Tensor> result;
  for (const auto& item : net->named_parameters())
    result[item.key()] = item.value();
  for (const auto& item : net->named_buffers())
    result[item.key()] = item.value();
  return result;
}

std::map<std::string, torch::Tensor> copies_of(const std::map<std::string, torch::Tensor>& tensors) {
  std::map<std::string, torch::Tensor> result;
  for (const auto& [name, tensor] : tensors)
    result[name] = tensor.detach().clone();
  return result;
}

/// The first tensor of `actual` that is not the one of `expected`; "" if there is none.
std::string not_the_same(const std::map<std::string, torch::Tensor>& actual,
                         const std::map<std::string, torch::Tensor>& expected) {
  if (actual.size() != expected.size()) return "other names";
  for (const auto& [name, tensor] : expected) {
    if (!actual.contains(name) || !actual.at(name).is_same(tensor)) return name;
  }
  return "";
}

/// The first tensor whose values differ; "" if there is none.
std::string not_equal(const std::map<std::string, torch::Tensor>& actual,
                      const std::map<std::string, torch::Tensor>& expected) {
  for (const auto& [name, tensor] : expected) {
    if (!torch::equal(actual.at(name), tensor)) return name;
  }
  return "";
}

/// Makes a file say that it holds other tensors: loading finds out when all of them are loaded.
void change_digest(const std::string& path) {
  auto file = qat::detail::read_checkpoint_file(path);
  auto header = nlohmann::ordered_json::parse(file.header);
  header["digest"] = std::string(64, '0');
  file.header = header.dump();
  qat::detail::write_checkpoint_file(path, file);
}

void save(const std::string& path, nn::Sequential& net) {
  save_checkpoint(path, *net, {});
}

}  // namespace

TEST_CASE("Loading into a model in TRAINING keeps the parameters that its optimizer knows", "[schedulers]") {
  for (const std::string family : {"lsq", "fp_d_xmax", "pow2_n_m"}) {
    INFO(family);
    const Folder folder;
    Run run(learned_config(family, family), /*rate=*/0.01);
    run.start();
    run.step();
    save(folder.file("m.qat"), run.net);
    const auto saved = copies_of(tensors_of(run.net));
    run.step();
    REQUIRE(not_equal(tensors_of(run.net), saved) != "");

    const auto parameters = learnables(run.net);
    const auto modules = quantizers(run.net);
    load_checkpoint(folder.file("m.qat"), *run.net);
    CHECK(not_the_same(learnables(run.net), parameters) == "");
    CHECK(quantizers(run.net) == modules);
    CHECK(not_equal(tensors_of(run.net), saved) == "");
    for (const auto& [path, parameter] : parameters)
      CHECK(parameter.requires_grad());

    run.step();  // the optimizer goes on with them
    bool moved = false;
    for (const auto& [path, parameter] : learnables(run.net))
      moved = moved || !torch::equal(parameter, saved.at(path));
    CHECK(moved);
  }
}

TEST_CASE("A slot whose quantizer has another configuration is filled anew", "[schedulers]") {
  const Folder folder;
  Run four(learned_config("lsq", "lsq", 4));
  Run six(learned_config("lsq", "lsq", 6));
  four.start();
  six.start();
  save(folder.file("four.qat"), four.net);
  const auto modules = quantizers(six.net);
  load_checkpoint(folder.file("four.qat"), *six.net);
  CHECK(widths(six.net, true) == widths(four.net, true));
  CHECK(quantizers(six.net) != modules);
  CHECK(mismatch(six.evaluate(), four.evaluate()) == "");
}

TEST_CASE("Loading that fails leaves the very modules, parameters and values", "[schedulers]") {
  const Folder folder;
  Run lsq(learned_config("lsq", "lsq", 4));
  Run wide(learned_config("lsq", "lsq", 6));
  Run fp(learned_config("fp_d_xmax", "fp_d_xmax"));
  auto net = small_net();
  save(folder.file("float.qat"), net);
  QATScheduler recording(net, {images()}, learned_config("lsq", "lsq"));
  recording.start_recording();
  net->forward(images());
  save(folder.file("recording.qat"), net);
  for (Run* run : {&lsq, &wide, &fp})
    run->start();
  save(folder.file("lsq.qat"), lsq.net);
  save(folder.file("wide.qat"), wide.net);
  save(folder.file("fp.qat"), fp.net);
  const auto names = {"float.qat", "recording.qat", "lsq.qat", "wide.qat", "fp.qat"};
  for (const char* name : names)
    change_digest(folder.file(name));

  auto plain = small_net();
  lsq.step();
  for (nn::Sequential* model : {&plain, &net, &lsq.net, &fp.net}) {
    for (const char* name : names) {
      INFO(name);
      const auto tensors = tensors_of(*model);
      const auto values = copies_of(tensors);
      const auto modules = quantizers(*model);
      CHECK(error_lacks([&] { load_checkpoint(folder.file(name), **model); }, {name, "digest"}) == "");
      CHECK(not_the_same(tensors_of(*model), tensors) == "");
      CHECK(not_equal(tensors_of(*model), values) == "");
      CHECK(quantizers(*model) == modules);
    }
  }
  CHECK(layer<nn::Conv2d>(net, 0).holds_parameters());
  CHECK(std::isfinite(lsq.step()));
}
