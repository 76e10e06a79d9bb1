#include "data_files.h"
#include "program_runner.h"
#include "small_run.h"
#include <qat/schedulers/file_digest.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>

#include "support/catch.h"

using namespace qat::apps::testing;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

constexpr const char* kFiles[] = {"config.toml",
                                  "metrics.csv",
                                  "summary.json",
                                  "report.html",
                                  "model.qat",
                                  "model.torchscript.pt",
                                  "model.torchscript.pt.sha256",
                                  "checkpoints/float.qat"};

/// The run that most cases look at; it is made once.
struct FinishedRun {
  TemporaryFolder folder;
  std::filesystem::path out = folder.path() / "first";
  ProgramOutcome outcome = train(small_run(out));
};

const FinishedRun& finished_run() {
  static const FinishedRun run;
  return run;
}

}  // namespace

TEST_CASE("Programs print help and version and end with status 0", "[apps]") {
  for (const auto* program : {"qat-train", "qat-eval"}) {
    const auto help = run_built_program(program, {"--help"});
    CHECK(help.status == 0);
    CHECK_THAT(help.standard_output, Contains("Usage:") && Contains(program));
    CHECK(help.standard_error.empty());
    CHECK(run_built_program(program, {"--version"}).status == 0);
  }
}

TEST_CASE("case 122: wrong options end with status 2 and make no output folder", "[apps]") {
  const TemporaryFolder folder;
  const auto out = folder.path() / "out";
  // The second word of each is named in the message.
  const std::vector<std::vector<std::string>> wrong = {{"--optimizer", "lion"},
                                                       {"--augment", "--wieght-bits"},
                                                       {"--weight-bits", "0"},
                                                       {"--weight-bits", "1.5"},
                                                       {"--weight-bits", "-3"},
                                                       {"--activation-bits", "99"},
                                                       {"--quantizer", "pact"},
                                                       {"--quantizer", "dorefa"},
                                                       {"--weight-budget-kb", "20"},
                                                       {"--layer-weight-bits", "fc1"},
                                                       {"--set", "momentun=0.9"},
                                                       {"--config", "/no/such.toml"},
                                                       {"--data", "synthetic", "--data-path", "/tmp"},
                                                       {"--weight-bits", "4", "--weight-bits", "8"}};
  for (const auto& options : wrong) {
    auto arguments = small_run(out);
    arguments.insert(arguments.end(), options.begin(), options.end());
    const auto outcome = train(arguments);
    INFO(options[0] << " " << options[1] << ": " << outcome.standard_error);
    CHECK(outcome.status == 2);
    CHECK_THAT(outcome.standard_error,
               Contains("error: ") && Contains(options[1].substr(0, options[1].find('='))));
    CHECK(outcome.standard_output.empty());
    CHECK_FALSE(std::filesystem::exists(out));
  }
}

TEST_CASE("A small training run ends well and writes every file", "[apps]") {
  const auto& run = finished_run();
  INFO(run.outcome.standard_error);
  REQUIRE(run.outcome.status == 0);
  CHECK_THAT(run.outcome.standard_output, Contains("float") && Contains("quantized") && Contains("exported"));
  CHECK_THAT(run.outcome.standard_error, Contains("float epoch 1/1") && Contains("qat epoch 1/1"));
  for (const auto* name : kFiles) {
    INFO(name);
    CHECK(std::filesystem::file_size(run.out / name) > 0);
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(run.out))
    CHECK_THAT(entry.path().filename().string(), !Contains("tmp"));

  const auto values = summary(run.out);
  for (const auto* key : {"float_accuracy", "qat_accuracy", "deployed_accuracy"}) {
    CHECK(values[key].get<double>() >= 0.0);
    CHECK(values[key].get<double>() <= 1.0);
  }
  CHECK(values["phase"] == "TRAINING");
  CHECK(values["weight_bits"] == 8);
  CHECK(values["activation_bits"] == 8);
  // 61706 parameters of lenet, 236 of them biases
  CHECK(values["size_bytes"] == 61706 - 236 + 4 * 236);
  CHECK(values["digest"].get<std::string>().size() == 64);
  CHECK(values["codes_compared"] == 1024);
  CHECK(values["codes_different"] == 0);
  CHECK(values["largest_output_difference"] == 0.0);
  CHECK(values["deployed_accuracy"] == values["qat_accuracy"]);
  for (const auto* phase : {"float", "recording", "training"})
    CHECK(values["seconds_per_step"][phase].get<double>() > 0.0);

  const auto metrics = content(run.out / "metrics.csv");
  CHECK(std::count(metrics.begin(), metrics.end(), '\n') == 3);
  CHECK_THAT(metrics, Contains("\nfloat,1,") && Contains("\nqat,1,"));
  CHECK_THAT(content(run.out / "report.html"), Contains("<svg") && Contains("conv1") && !Contains("http"));
}

TEST_CASE("The written configuration repeats a run to the last bit", "[apps]") {
  const auto& run = finished_run();
  REQUIRE(run.outcome.status == 0);
  const auto again = run.folder.path() / "again";
  const auto outcome = train({"--config", (run.out / "config.toml").string(), "--out", again.string()});
  INFO(outcome.standard_error);
  REQUIRE(outcome.status == 0);
  CHECK(summary(again)["digest"] == summary(run.out)["digest"]);
  CHECK(content(again / "config.toml") == content(run.out / "config.toml"));

  const auto other =
      train({"--config", (run.out / "config.toml").string(), "--seed", "6", "--out", again.string()});
  REQUIRE(other.status == 0);  // into the same folder
  CHECK(summary(again)["digest"] != summary(run.out)["digest"]);
}

TEST_CASE("The same run with the same threads, twice, writes the same bits", "[apps]") {
  const std::vector<std::vector<std::string>> runs = {
      {"--model", "mlp", "--threads", "2", "--quantizer", "lsq"},
      {"--model", "mlp", "--threads", "2", "--quantizer", "fp_d_xmax", "--weight-budget-kb", "90"}};
  for (const auto& options : runs) {
    const TemporaryFolder folder;
    const auto first = folder.path() / "first";
    const auto second = folder.path() / "second";
    for (const auto& out : {first, second}) {
      const auto outcome = train(small_run_with(out, options));
      INFO(outcome.standard_error);
      REQUIRE(outcome.status == 0);
    }
    CHECK(summary(first)["digest"] == summary(second)["digest"]);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(first)) {
      const auto name = std::filesystem::relative(entry.path(), first);
      if (name.extension() != ".qat") continue;
      INFO(options[5] << " " << name);
      CHECK(content(entry.path()) == content(second / name));
    }
  }
}

TEST_CASE("qat-eval finds the accuracies of the summary in the files", "[apps]") {
  const auto& run = finished_run();
  REQUIRE(run.outcome.status == 0);
  const auto values = summary(run.out);
  CHECK(evaluated_accuracy(run.out / "model.qat") == values["qat_accuracy"].get<double>());
  CHECK(evaluated_accuracy(run.out / "model.torchscript.pt") == values["deployed_accuracy"].get<double>());
  CHECK(evaluated_accuracy(run.out / "checkpoints/float.qat") == values["float_accuracy"].get<double>());
  const auto text = run_built_program("qat-eval", {(run.out / "model.qat").string()});
  CHECK_THAT(text.standard_output, Contains("lenet") && Contains("TRAINING") && Contains("of 1024"));
  CHECK_THAT(text.standard_output, Contains("digest: " + values["digest"].get<std::string>()));
  const auto exported = run_built_program("qat-eval", {(run.out / "model.torchscript.pt").string()});
  CHECK_THAT(exported.standard_output, Contains("TorchScript of lenet, phase TRAINING") &&
                                           Contains("weights affine 8, activations affine 8 bits") &&
                                           Contains("conv1:8 conv2:8 fc1:8 fc2:8 fc3:8"));
  CHECK_THAT(exported.standard_output,
             Contains("SHA-256: " + content(run.out / "model.torchscript.pt.sha256").substr(0, 64)));
}

TEST_CASE("Ranges alone quantize a model where there is no epoch to train", "[apps]") {
  const TemporaryFolder folder;
  const auto outcome = train(small_run_with(folder.path() / "out", {"--qat-epochs", "0"}));
  INFO(outcome.standard_error);
  REQUIRE(outcome.status == 0);
  CHECK(summary(folder.path() / "out")["phase"] == "TRAINING");
}

TEST_CASE("case 126: qat-eval refuses files that are no model", "[apps]") {
  const auto& run = finished_run();
  REQUIRE(run.outcome.status == 0);
  const TemporaryFolder folder;
  const auto text_of = [](const std::string& text) { return Bytes(text.begin(), text.end()); };
  const auto checkpoint = text_of(content(run.out / "model.qat"));
  const auto script = text_of(content(run.out / "model.torchscript.pt"));
  auto damaged = checkpoint;
  damaged[damaged.size() / 2] ^= 1;
  const std::vector<std::filesystem::path> files = {
      folder.write("cut.qat", cut(checkpoint, checkpoint.size() / 2)),
      folder.write("damaged.qat", damaged),
      folder.write("empty.qat", {}),
      folder.write("text.qat", text_of("no model at all\n")),
      folder.write("pickled.qat", {0x80, 0x02, 0x7d, 0x71, 0x00, 0x2e}),
      folder.write("cut.pt", cut(script, script.size() / 2)),
      folder.path() / "missing.qat",
  };
  for (const auto& file : files) {
    const auto outcome = run_built_program("qat-eval", {file.string()});
    INFO(outcome.standard_error);
    CHECK(outcome.status == 1);
    CHECK_THAT(outcome.standard_error,
               Contains("error: ") && Contains(file.filename().string()) && !Contains("frame #"));
    CHECK(outcome.standard_output.empty());
  }
}

TEST_CASE("qat-eval refuses an exported file that differs from its digest", "[apps]") {
  const auto& run = finished_run();
  REQUIRE(run.outcome.status == 0);
  const auto line = content(run.out / "model.torchscript.pt.sha256");
  REQUIRE(line.size() == 64 + 2 + std::string("model.torchscript.pt\n").size());
  CHECK(line.substr(64) == "  model.torchscript.pt\n");

  const TemporaryFolder folder;
  const auto evaluate = [](const std::filesystem::path& file) {
    return run_built_program("qat-eval", {file.string(), "--threads", "1"});
  };
  const auto bytes_of = [](const std::string& text) { return Bytes(text.begin(), text.end()); };
  auto bytes = bytes_of(content(run.out / "model.torchscript.pt"));
  const auto file = folder.write("model.pt", bytes);
  CHECK_THAT(evaluate(file).standard_output, Contains("not compared, there is no model.pt.sha256"));
  const auto digest = folder.write("model.pt.sha256", bytes_of(line));
  CHECK(evaluate(file).status == 0);
  for (const auto at : {std::size_t{0}, bytes.size() / 2}) {
    bytes[at] ^= 1;
    folder.write("model.pt", bytes);
    const auto outcome = evaluate(file);
    INFO(outcome.standard_error);
    CHECK(outcome.status == 1);
    CHECK_THAT(outcome.standard_error,
               Contains(file.string()) && Contains(line.substr(0, 64)) && Contains("again"));
    CHECK_THAT(outcome.standard_error, Contains("found " + qat::file_digest(file.string())));
    bytes[at] ^= 1;
  }
  folder.write("model.pt", bytes);
  folder.write("model.pt.sha256", bytes_of("nonsense\n"));
  const auto outcome = evaluate(file);
  CHECK(outcome.status == 1);
  CHECK_THAT(outcome.standard_error, Contains(digest.string()) && Contains("nonsense"));
}

TEST_CASE("case 124: unreadable data ends with status 1 and names the file", "[apps]") {
  const TemporaryFolder folder;
  const auto out = folder.path() / "out";
  folder.write("train-images-idx3-ubyte", {1, 2, 3, 4});
  folder.write("train-labels-idx1-ubyte", {});
  folder.write("t10k-images-idx3-ubyte", {});
  folder.write("t10k-labels-idx1-ubyte", {});
  const auto damaged = train({"--data-path", folder.path().string(), "--out", out.string()});
  CHECK(damaged.status == 1);
  CHECK_THAT(damaged.standard_error, Contains("error: ") && Contains("ubyte") && !Contains("frame #"));
  const auto missing = train({"--data-path", "/no/such/folder", "--out", out.string()});
  CHECK(missing.status == 1);
  CHECK_THAT(missing.standard_error, Contains("/no/such/folder"));
  CHECK_FALSE(std::filesystem::exists(out));
}

TEST_CASE("A run that is refused leaves the results of an earlier run as they were", "[apps]") {
  const TemporaryFolder folder;
  folder.write("summary.json", {'{', '}'});
  folder.write("model.qat", {1, 2, 3});
  const TemporaryFolder damaged;
  damaged.write("train-images-idx3-ubyte", {1, 2, 3, 4});
  const TemporaryFolder small;  // images too small for any network
  for (const std::string name : {"train", "t10k"}) {
    small.write(name + "-images-idx3-ubyte", idx_images(32, 8, 8));
    small.write(name + "-labels-idx1-ubyte", idx_labels(32));
  }
  struct Refused {
    std::vector<std::string> options;
    int status;
    std::string named;
  };
  const std::vector<Refused> runs = {
      {{"--data-path", damaged.path().string()}, 1, "ubyte"},
      {{"--data-path", small.path().string(), "--batch-size", "8"}, 1, "8 x 8"},
      {{"--weight-bits", "1"}, 2, "--weight-bits"},
      {{"--activation-bits", "40"}, 2, "--activation-bits"},
  };
  for (auto run : runs) {
    run.options.insert(run.options.end(), {"--out", folder.path().string()});
    const auto outcome = train(run.options);
    INFO(outcome.standard_error);
    CHECK(outcome.status == run.status);
    CHECK_THAT(outcome.standard_error, Contains("error: ") && Contains(run.named) && !Contains("epoch"));
    CHECK(content(folder.path() / "summary.json") == "{}");
    CHECK(std::filesystem::file_size(folder.path() / "model.qat") == 3);
    CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 2);
  }
}

TEST_CASE("An output folder that cannot be made ends with status 1 before any work", "[apps]") {
  const TemporaryFolder folder;
  const auto file = folder.write("file", {1});
  const auto outcome = train(small_run(file / "out"));
  CHECK(outcome.status == 1);
  CHECK_THAT(outcome.standard_error, Contains((file / "out").string()) && !Contains("epoch"));
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("Images of another shape than a model was trained on are refused", "[apps]") {
  const auto& run = finished_run();
  REQUIRE(run.outcome.status == 0);
  const TemporaryFolder folder;
  folder.write("train-images-idx3-ubyte", idx_images(8, 14, 14));
  folder.write("train-labels-idx1-ubyte", idx_labels(8));
  folder.write("t10k-images-idx3-ubyte", idx_images(8, 14, 14));
  folder.write("t10k-labels-idx1-ubyte", idx_labels(8));
  const auto outcome = run_built_program(
      "qat-eval",
      {(run.out / "model.qat").string(), "--data", "fashion-mnist", "--data-path", folder.path().string()});
  CHECK(outcome.status == 1);
  CHECK_THAT(outcome.standard_error, Contains("[1, 28, 28]") && Contains("[1, 14, 14]"));
}
