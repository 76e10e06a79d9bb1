#include "data_files.h"
#include "error_text.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <sstream>
#include <thread>

#include "support/catch.h"
#include "support/output_folder.h"
#include "support/progress.h"
#include "support/report.h"
#include "support/run_result.h"

using namespace qat::apps;
using namespace qat::apps::testing;
using Catch::Matchers::Contains;

namespace {

RunResult example_result() {
  RunResult result;
  result.phase = "TRAINING";
  result.rows = {{"float", 1, 0.5, 0.8, 0.75, 0.1, 12.5, 0, ""},
                 {"qat", 1, 0.25, 0.9, 0.85, 0.01, 13.0, 4321, "conv1:4 fc:3", 3.25, 5120, 4.5}};
  using Kind = qat::QuantizedTensor::Kind;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  result.layers = {{1,
                    {"conv1", "weight_slot", Kind::kWeight, 4, 20000, 10000},
                    40448,
                    {"conv1", "weight_slot", 4, 23.456, 0.0125, 16, 15}},
                   {1, {"conv1", "output_slot", Kind::kActivation, 5, 1600, 1000}, 0, {"", "", 0, nan}}};
  result.activation_bytes = 5120;
  result.float_accuracy = 0.75;
  result.qat_accuracy = 0.85;
  result.deployed_accuracy = 0.85;
  result.size_bytes = 79 * 1024;
  result.packed_bytes = 40000;
  result.weights = {{"conv1", 4, 20000, 10000}, {"fc", 3, 60000, 30000}};
  result.config.weight_budget_kb = 39.5;
  result.float_size_bytes = 310 * 1024;
  result.digest = "abc";
  result.codes_compared = 1000;
  result.seconds_per_step = {{"float", 0.1}, {"training", 0.2}};
  result.slots = {{"conv1", "Conv2d", "weight", "int4", 0.5, 0.5, -4, 3.5, {1, 2}},
                  {"block<1>.conv", "Conv2d", "weight", "int8 & narrow", 0.5, 0.75, -63.5, 95.25, {0, 3, 1}}};
  return result;
}

}  // namespace

TEST_CASE("An output folder replaces the files of an earlier run and leaves others", "[apps]") {
  const TemporaryFolder temporary;
  const auto path = temporary.path() / "a" / "b";
  {
    const OutputFolder folder(path);
    folder.write("summary.json", "old");
    folder.write("notes.txt", "mine");
    folder.write("model.torchscript.pt.sha256", "old");
    folder.write("checkpoints/float.qat", "old");
    folder.write("checkpoints/qat-3.qat", "old");
    folder.write("checkpoints/mine.qat", "mine");
  }
  const OutputFolder folder(path);
  CHECK_FALSE(std::filesystem::exists(path / "summary.json"));
  CHECK_FALSE(std::filesystem::exists(path / "model.torchscript.pt.sha256"));
  CHECK_FALSE(std::filesystem::exists(path / "checkpoints/float.qat"));
  CHECK_FALSE(std::filesystem::exists(path / "checkpoints/qat-3.qat"));  // its run may have had more epochs
  CHECK(std::filesystem::exists(path / "checkpoints/mine.qat"));
  CHECK(std::filesystem::exists(path / "notes.txt"));
}

TEST_CASE("A file that cannot be written is named and leaves nothing behind", "[apps]") {
  const TemporaryFolder temporary;
  const OutputFolder folder(temporary.path());
  std::filesystem::create_directories(temporary.path() / "report.html" / "x");  // no file can take this name
  CHECK_THAT(error_text([&] { folder.write("report.html", "text"); }), Contains("report.html"));
  CHECK_FALSE(std::filesystem::exists(temporary.path() / "report.html.tmp"));
  CHECK_THAT(error_text([&] { folder.write("no/folder/file", "text"); }), Contains("no/folder/file"));
}

TEST_CASE("metrics.csv has a row for each epoch", "[apps]") {
  CHECK(metrics_csv(example_result().rows) ==
        "phase,epoch,loss,train_accuracy,test_accuracy,learning_rate,seconds,packed_bytes,"
        "weight_bits\n"
        "float,1,0.500000,0.800000,0.750000,0.1,12.500,0,\n"
        "qat,1,0.250000,0.900000,0.850000,0.01,13.000,4321,conv1:4 fc:3\n");
}

TEST_CASE("layers.csv has a row for each quantized tensor of an epoch", "[apps]") {
  CHECK(layers_csv(example_result().layers) ==
        "epoch,layer,slot,kind,bits,bytes,budget_bytes,qsnr_db,clipped,used_levels,levels\n"
        "1,conv1,weight_slot,weight,4,10000,40448,23.46,0.012500,15,16\n"
        "1,conv1,output_slot,activation,5,1000,0,nan,0.000000,0,0\n");
  CHECK(layers_csv({}) ==
        "epoch,layer,slot,kind,bits,bytes,budget_bytes,qsnr_db,clipped,used_levels,levels\n");
}

TEST_CASE("Activations count as their budget does", "[apps]") {
  using Kind = qat::QuantizedTensor::Kind;
  const std::vector<qat::QuantizedTensor> tensors = {{"a", "weight_slot", Kind::kWeight, 8, 100, 100},
                                                     {"a", "input_slot", Kind::kActivation, 4, 30, 15},
                                                     {"a", "output_slot", Kind::kActivation, 2, 10, 3}};
  RunConfig config;
  config.activation_budget_kb = 0.0498;  // 50.995 bytes
  CHECK(activation_bytes(config, tensors) == 18);
  CHECK(mean_activation_bits(tensors) == 3.5);
  CHECK(mean_activation_bits({}) == 0);
  CHECK(budget_bytes(config, Kind::kActivation) == 50);
  CHECK(budget_bytes(config, Kind::kWeight) == 0);
  config.activation_budget = "largest";
  CHECK(activation_bytes(config, tensors) == 15);
}

TEST_CASE("summary.json holds the result by name", "[apps]") {
  const auto values = nlohmann::json::parse(summary_json(example_result()));
  CHECK(values["qat_accuracy"] == 0.85);
  CHECK(values["size_bytes"] == 79 * 1024);
  CHECK(values["packed_bytes"] == 40000);
  CHECK(values["weight_budget_bytes"] == 39.5 * 1024);
  CHECK(values["activation_bytes"] == 5120);
  CHECK(values["activation_budget_kb"] == 0.0);
  CHECK(values["activation_budget"] == "sum");
  CHECK(values["seconds_per_step"]["training"] == 0.2);
  CHECK_FALSE(values["seconds_per_step"].contains("recording"));

  auto powers = example_result();
  powers.config.weight_quantizer = "pow2_n_m";  // at most 4 bits
  powers.config.weight_bits = 8;
  powers.config.activation_bits = 8;
  const auto widths = nlohmann::json::parse(summary_json(powers));
  CHECK(widths["weight_bits"] == 4);
  CHECK(widths["activation_bits"] == 8);
}

TEST_CASE("The report shows curves and layers and escapes names", "[apps]") {
  const auto html = report_html(example_result());
  CHECK_THAT(html, Contains("<td>23.5 dB</td><td>1.2 %</td><td>15 of 16</td>"));
  CHECK_THAT(html, Contains("block&lt;1&gt;.conv") && Contains("int8 &amp; narrow") && Contains("75.00 %"));
  CHECK_THAT(html, Contains("<polyline") && Contains("class=\"phase\"") && Contains("0.5 to 0.75"));
  CHECK_THAT(html, Contains("<td>fc</td><td>3</td><td>30000</td><td>75.0 %</td>"));
  CHECK_THAT(html, Contains("<td>all</td><td>3.25</td><td>40000</td><td>100.0 %</td>"));
  CHECK_THAT(html, Contains("<td>39.1 kB</td><td>39.5 kB</td>"));
  CHECK_THAT(html, Contains("Packed weights by epoch, kB") && Contains("Mean bits of a weight by epoch"));
  CHECK_THAT(html, !Contains("Activations") && !Contains("activations</th>"));
  auto both = example_result();
  both.config.activation_budget_kb = 5.5;
  CHECK_THAT(report_html(both), Contains("<td>39.1 kB</td><td>39.5 kB</td><td>5.0 kB</td><td>5.5 kB</td>") &&
                                    Contains("<th>activations</th><th>budget</th>"));
  CHECK_THAT(report_html(both), Contains("Packed weights by epoch, kB") &&
                                    Contains("Activations of a sample by epoch, kB") &&
                                    Contains("Mean bits of an activation by epoch"));
  both.config.weight_budget_kb = 0;
  both.config.activation_budget = "largest";
  CHECK_THAT(report_html(both), Contains("<td>39.1 kB</td><td>5.0 kB</td><td>5.5 kB</td>") &&
                                    Contains("<th>largest activation</th>") &&
                                    Contains("Largest activation by epoch, kB") &&
                                    !Contains("Packed weights by epoch, kB"));
  auto unlimited = example_result();
  unlimited.config.weight_budget_kb = 0;
  CHECK_THAT(report_html(unlimited), !Contains("by epoch, kB") && !Contains("budget</th>"));
  auto empty = example_result();
  empty.rows.clear();
  CHECK_THAT(report_html(empty), !Contains("<polyline"));
}

TEST_CASE("The result table gives accuracy, size, packed weights and their budget", "[apps]") {
  auto result = example_result();
  CHECK_THAT(result_table(result),
             Contains("75.00 %") && Contains("310.0 kB") && Contains("79.0 kB") && Contains("0 of 1000"));
  CHECK_THAT(result_table(result), Contains("budget\n") && Contains("39.1 kB     39.5 kB\n"));
  CHECK_THAT(result_table(result), Contains("(weights 8, activations 8 bits)"));
  result.config.activation_budget_kb = 5.5;
  CHECK_THAT(result_table(result), Contains("packed weights      budget  activations      budget\n") &&
                                       Contains("39.1 kB     39.5 kB       5.0 kB      5.5 kB\n"));
  result.config.activation_budget_kb = 0;
  result.config.weight_budget_kb = 0;
  result.config.weight_quantizer = "fp_d_xmax";
  CHECK_THAT(result_table(result), !Contains("budget") && Contains("39.1 kB\n"));
  CHECK_THAT(result_table(result), Contains("(weights up to 8, activations 8 bits)"));
}

TEST_CASE("A kB has 1024 bytes", "[apps]") {
  CHECK(size_text(1023) == "1023 B");
  CHECK(size_text(1024) == "1.0 kB");
  CHECK(size_text(20 * 1024) == "20.0 kB");
  CHECK(size_text(1234567) == "1.18 MB");
}

TEST_CASE("A progress line tells phase, place, quality, speed and time left", "[apps]") {
  CHECK(progress_line({"float", 2, 6, 120, 468, 0.43212, 0.8431, 2150.4, 91.2}) ==
        "float 2/6  step 120/468  loss 0.4321  accuracy 84.31 %  2150 images/s  1:32 left");
  CHECK_THAT(progress_line({"qat", 1, 1, 1, 1, 0, 0, 1, 3661}), Contains("1:01:01 left"));
  CHECK(progress_line({"recording", 0, 0, 12, 50, {}, {}, 2150, 3}) ==
        "recording  step 12/50  2150 images/s  0:03 left");
  CHECK(progress_line({"test", 0, 0, 3, 20, {}, 0.5, 100, 1}) ==
        "test  step 3/20  accuracy 50.00 %  100 images/s  0:01 left");
}

TEST_CASE("Progress rewrites its line on a terminal and prints plain lines elsewhere", "[apps]") {
  const ProgressState state{"float", 1, 1, 1, 2, 0.5, 0.5, 10, 1};
  std::ostringstream terminal;
  Progress on_terminal(terminal, Progress::Output::kTerminal);
  on_terminal.show(state);
  on_terminal.show(state);
  on_terminal.message("done");
  CHECK(terminal.str().front() == '\r');
  CHECK_THAT(terminal.str(), Contains("\rdone\n"));
  const auto text = terminal.str();
  CHECK(std::count(text.begin(), text.end(), '\n') == 1);

  std::ostringstream plain;
  Progress elsewhere(plain, Progress::Output::kPlain);
  CHECK_FALSE(elsewhere.due());
  elsewhere.show(state);
  elsewhere.message("done");
  CHECK(plain.str() == progress_line(state) + "\ndone\n");
}

TEST_CASE("A test and a recording show how far they are where nothing was shown for a while", "[apps]") {
  std::ostringstream terminal;
  Progress progress(terminal, Progress::Output::kTerminal);
  progress.show_if_due("test", 1, 4, 0.5, 500, 1.0);
  CHECK(terminal.str().empty());
  std::this_thread::sleep_for(std::chrono::milliseconds(210));
  progress.show_if_due("test", 1, 4, 0.5, 500, 1.0);
  CHECK(terminal.str() == "\rtest  step 1/4  accuracy 50.00 %  500 images/s  0:03 left");
  progress.clear();
  CHECK(terminal.str().ends_with("  \r"));
}
