// Programs with learned quantizers, budgets and a start from a checkpoint.
#include "data_files.h"
#include "small_run.h"
#include <qat/nn/packed_weights.h>
#include <qat/schedulers/checkpoint.h>

#include <cstdint>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.h"
#include "support/models.h"

using namespace qat::apps::testing;
using Catch::Matchers::Contains;

TEST_CASE("A budget for the weights is kept to the last file", "[apps]") {
  const TemporaryFolder folder;
  const auto out = folder.path() / "out";
  // 61470 weights; 236 scales and biases. 8 bits take 61.9 kB.
  const auto outcome = train(
      small_run_with(out, {"--quantizer", "fp_d_xmax", "--weight-budget-kb", "20", "--qat-epochs", "2"}));
  INFO(outcome.standard_error);
  REQUIRE(outcome.status == 0);
  const auto values = summary(out);
  CHECK(values["packed_bytes"].get<std::int64_t>() <= 20 * 1024);
  CHECK(values["packed_bytes"].get<std::int64_t>() >= 17256);
  CHECK(values["weight_budget_bytes"] == 20 * 1024);
  CHECK(values["codes_different"] == 0);
  CHECK(values["largest_output_difference"] == 0.0);
  const auto metrics = content(out / "metrics.csv");
  CHECK_THAT(metrics, Contains(",packed_bytes,weight_bits\n") && Contains("conv1:") && Contains(" fc3:"));
  CHECK_THAT(metrics, Contains("," + std::to_string(values["packed_bytes"].get<std::int64_t>()) + ",conv1:"));
  CHECK(evaluated_accuracy(out / "model.qat") == values["qat_accuracy"].get<double>());
  CHECK(evaluated_accuracy(out / "checkpoints/qat-2.qat") == values["qat_accuracy"].get<double>());
  CHECK(std::filesystem::exists(out / "checkpoints/qat-1.qat"));
}

TEST_CASE("A budget that no widths keep is refused before training with the smallest one", "[apps]") {
  const TemporaryFolder folder;
  const auto out = folder.path() / "out";
  const auto outcome = train(small_run_with(out, {"--quantizer", "fp_d_xmax", "--weight-budget-kb", "16"}));
  INFO(outcome.standard_error);
  CHECK(outcome.status == 2);
  CHECK_THAT(outcome.standard_error, Contains("error: --weight-budget-kb 16 ") && Contains("17256 bytes") &&
                                         Contains("16.8516 kB") && !Contains("epoch"));
  CHECK_FALSE(std::filesystem::exists(out));
  const auto smallest =
      train(small_run_with(out, {"--quantizer", "fp_d_xmax", "--weight-budget-kb", "16.8516"}));
  INFO(smallest.standard_error);
  REQUIRE(smallest.status == 0);
  CHECK(summary(out)["packed_bytes"] == 17256);
}

TEST_CASE("A run with budgets says of each layer and epoch what it takes", "[apps]") {
  const TemporaryFolder folder;
  const auto out = folder.path() / "out";
  const auto outcome = train(small_run_with(out, {"--quantizer", "fp_d_xmax", "--weight-budget-kb", "20",
                                                  "--activation-budget-kb", "4", "--qat-epochs", "2"}));
  INFO(outcome.standard_error);
  REQUIRE(outcome.status == 0);
  std::istringstream lines(content(out / "layers.csv"));
  std::string line;
  std::getline(lines, line);
  CHECK(line == "epoch,layer,slot,kind,bits,bytes,budget_bytes,qsnr_db,clipped,used_levels,levels");
  std::map<std::string, std::int64_t> bytes;  // by epoch and kind
  while (std::getline(lines, line)) {
    std::vector<std::string> cells;
    std::istringstream row(line);
    for (std::string cell; std::getline(row, cell, ',');)
      cells.push_back(cell);
    REQUIRE(cells.size() == 11);
    CHECK(std::stod(cells[7]) > 0);  // more signal than noise
    CHECK(std::stod(cells[8]) < 0.5);
    CHECK(std::stoll(cells[9]) >= 1);
    CHECK(std::stoll(cells[9]) <= std::stoll(cells[10]));
    bytes[cells[0] + " " + cells[3]] += std::stoll(cells[5]);
    CHECK(cells[6] == (cells[3] == "weight" ? "20480" : "4096"));
    CHECK(std::stoll(cells[4]) >= 1);
  }
  REQUIRE(bytes.size() == 4);
  const auto values = summary(out);
  CHECK(bytes["2 weight"] == values["packed_bytes"].get<std::int64_t>());
  CHECK(bytes["2 activation"] == values["activation_bytes"].get<std::int64_t>());
  CHECK(values["activation_budget_kb"] == 4.0);
  CHECK(bytes["1 weight"] <= 20480);
  CHECK(bytes["1 activation"] <= 4096);
  CHECK(bytes["2 activation"] <= 4096);
  CHECK_THAT(content(out / "report.html"), Contains("Activations of a sample by epoch, kB"));
}

TEST_CASE("An activation budget that signed codes exceed is refused before training", "[apps]") {
  // 2 bits of the 784 pixels, which may be negative, are 196 bytes; 1 bit would be 98.
  const TemporaryFolder folder;
  const auto out = folder.path() / "out";
  const auto outcome =
      train(small_run_with(out, {"--quantizer", "fp_d_xmax", "--activation-budget-kb", "0.17",
                                 "--activation-budget", "largest", "--model", "mlp"}));
  INFO(outcome.standard_error);
  CHECK(outcome.status == 2);
  CHECK_THAT(outcome.standard_error,
             Contains("error: --activation-budget-kb 0.17 ") && Contains("196 bytes") && !Contains("epoch"));
  CHECK_FALSE(std::filesystem::exists(out));
}

TEST_CASE("Every epoch's checkpoint holds packed weights within the budget", "[apps]") {
  for (const std::int64_t kilobytes : {62, 90, 150}) {
    const TemporaryFolder folder;
    const auto out = folder.path() / "out";
    const auto outcome =
        train(small_run_with(out, {"--model", "mlp", "--quantizer", "fp_d_xmax", "--weight-budget-kb",
                                   std::to_string(kilobytes), "--qat-epochs", "3"}));
    INFO(outcome.standard_error);
    REQUIRE(outcome.status == 0);
    for (const int epoch : {1, 2, 3}) {
      const auto model = qat::apps::make_model("mlp", {1, 28, 28}, 10);
      qat::load_checkpoint((out / ("checkpoints/qat-" + std::to_string(epoch) + ".qat")).string(),
                           *model.module);
      std::vector<qat::PackedLayer> layers;
      for (auto& [path, layer] : qat::nn::pack_weights(*model.module))
        layers.push_back(std::move(layer));
      const auto size = static_cast<std::int64_t>(qat::write_payload(layers).bytes.size());
      INFO(kilobytes << " kB, epoch " << epoch);
      CHECK(layers.size() == 3);
      CHECK(size <= kilobytes * 1024);
      CHECK_THAT(content(out / "metrics.csv"), Contains("," + std::to_string(size) + ",fc1:"));
    }
  }
}

TEST_CASE("Options that the network cannot follow end with status 2 before training", "[apps]") {
  const TemporaryFolder folder;
  const auto out = folder.path() / "out";
  const std::vector<std::vector<std::string>> wrong = {
      {"--layer-weight-bits", "conv9=4"},
      {"--layer-weight-bits", "relu1=4"},  // a layer without a weight
      {"--activation-budget-kb", "0.1", "--quantizer", "fp_d_xmax"}};
  for (const auto& options : wrong) {
    const auto outcome = train(small_run_with(out, options));
    INFO(outcome.standard_error);
    CHECK(outcome.status == 2);
    CHECK_THAT(outcome.standard_error,
               Contains("error: " + options[0] + " " + options[1]) && !Contains("epoch"));
    CHECK_FALSE(std::filesystem::exists(out));
  }
}

TEST_CASE("Learned steps of 4 bits deploy to the same predictions", "[apps]") {
  const TemporaryFolder folder;
  const auto out = folder.path() / "out";
  const auto outcome =
      train(small_run_with(out, {"--quantizer", "lsq", "--weight-bits", "4", "--activation-bits", "4"}));
  INFO(outcome.standard_error);
  REQUIRE(outcome.status == 0);
  const auto values = summary(out);
  CHECK(values["codes_different"] == 0);
  CHECK(values["packed_bytes"] == 75 + 1200 + 24000 + 5040 + 420 + 8 * 236);
  CHECK_THAT(content(out / "metrics.csv"), Contains("conv1:4 conv2:4 fc1:4 fc2:4 fc3:4"));
}

TEST_CASE("A run starts from the checkpoint of another", "[apps]") {
  const TemporaryFolder folder;
  const auto first = folder.path() / "first";
  REQUIRE(train(small_run(first)).status == 0);
  const auto out = folder.path() / "out";
  const auto start = (first / "checkpoints/float.qat").string();
  const auto outcome = train(small_run_with(
      out, {"--init", start, "--float-epochs", "0", "--quantizer", "lsq", "--layer-weight-bits", "conv1=4"}));
  INFO(outcome.standard_error);
  REQUIRE(outcome.status == 0);
  CHECK(summary(out)["float_accuracy"] == summary(first)["float_accuracy"]);
  CHECK(summary(out)["codes_different"] == 0);
  CHECK_THAT(content(out / "metrics.csv"), Contains("conv1:4 conv2:8") && !Contains("\nfloat,"));

  const TemporaryFolder other;  // what cannot be a start is refused before anything is made
  const auto refused = other.path() / "out";
  for (const auto& options :
       std::vector<std::vector<std::string>>{{"--init", "/no/such/float.qat"},
                                             {"--init", start, "--model", "mlp"},
                                             {"--init", (first / "model.qat").string()}}) {
    const auto ended = train(small_run_with(refused, options));
    INFO(ended.standard_error);
    CHECK(ended.status == 1);
    CHECK_THAT(ended.standard_error, Contains(options[1]) && !Contains("epoch") && !Contains("frame #"));
    CHECK_FALSE(std::filesystem::exists(refused));
  }
}
