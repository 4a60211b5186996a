#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "runtime/report/report.h"

namespace meshtrain::report {
namespace {

using Json = nlohmann::ordered_json;

Json DocumentOf(const Report& report) { return Json::parse(Document(report)); }

EpochSummary Three() {
  EpochHistory history;
  history.Add({1, {{"loss", .831}, {"accuracy", .772}}, {{"loss", .340}, {"accuracy", .901}}, .11});
  history.Add({2, {{"loss", .299}, {"accuracy", .911}}, {{"loss", .249}, {"accuracy", .926}}, .09});
  history.Add({3, {{"loss", .187}, {"accuracy", .946}}, {{"loss", .233}, {"accuracy", .929}}, 0});
  return history.Summary();
}

std::vector<std::string> Titles(const Json& document) {
  std::vector<std::string> titles;
  for (const Json& chart : document["charts"]) titles.push_back(chart["title"]);
  return titles;
}

TEST(DocumentTest, SaysEverything) {
  Report report{.title = "mnist-mlp",
                .subtitle = "3 epochs",
                .state = State{.phase = Phase::kTraining,
                               .why = "",
                               .step = 120,
                               .steps = 6000,
                               .epoch = 3,
                               .epochs = 150,
                               .figures = {{"loss", .3}},
                               .step_seconds = 0.0021,
                               .examples_per_second = 61000,
                               .eta_seconds = 12.5,
                               .elapsed_seconds = 3},
                .epochs = Three(),
                .steps = {{"loss", {PointAt(1, .9), PointAt(2, .8)}}},
                .step_seconds = {PointAt(1, .002)},
                .facts = {{"model", "dense 10"}},
                .plan = PlanView{.axes = {{"batch", 2}},
                                 .devices = {"cpu:0", "cpu:1"},
                                 .num_devices = 2,
                                 .variables = {{.name = "w",
                                                .type = "f32[4,2]",
                                                .layout = "{*, batch}",
                                                .split = {{}, {"batch"}},
                                                .shard = "f32[4,1]",
                                                .bytes = 16}},
                                 .collectives = {{"all_reduce", "batch", 3, 96}},
                                 .memory = {{"states", 16}},
                                 .peak_bytes = 16,
                                 .note = "one sentence"}};
  const Json d = DocumentOf(report);
  EXPECT_EQ(d["state"], Json::parse(R"({"phase":"training","why":"","step":120,"steps":6000,
      "epoch":3,"epochs":150,"figures":{"loss":0.3},"stepSeconds":0.0021,
      "examplesPerSecond":61000,"etaSeconds":12.5,"elapsedSeconds":3})"));
  EXPECT_EQ(Titles(d), (std::vector<std::string>{"Loss", "Loss of each step", "Accuracy",
                                                 "Time of each step"}));
  EXPECT_EQ(d["charts"][0], Json::parse(R"({"title":"Loss","unit":"epoch","values":"number",
      "fromZero":true,"series":[{"name":"train","points":[[1,0.831],[2,0.299],[3,0.187]]},
      {"name":"test","points":[[1,0.34],[2,0.249],[3,0.233]]}]})"));
  EXPECT_EQ(d["charts"][2]["fromZero"], false);
  EXPECT_EQ(d["charts"][3]["values"], "seconds");
  EXPECT_EQ(d["epochs"]["columns"],
            Json({"train loss", "train accuracy", "test loss", "test accuracy"}));
  EXPECT_EQ(d["epochs"]["rows"][2], Json::parse(R"({"epoch":3,"best":true,
      "figures":[0.187,0.946,0.233,0.929],"seconds":null})"));
  EXPECT_EQ(d["facts"], Json::parse(R"([["model","dense 10"]])"));
  EXPECT_EQ(d["plan"], Json::parse(R"({"axes":[["batch",2]],"devices":["cpu:0","cpu:1"],
      "deviceCount":2,"groups":[],"inputs":[],"variables":[{"name":"w","type":"f32[4,2]",
      "layout":"{*, batch}","split":[[],["batch"]],"shard":"f32[4,1]","bytes":16}],
      "variableCount":1,"collectives":[{"kind":"all_reduce","axes":"batch","count":3,"bytes":96}],
      "memory":[["states",16]],"peakBytes":16,"note":"one sentence"})"));
}

TEST(DocumentTest, WhatIsNotKnownIsLeftOut) {
  const Json d = DocumentOf({.title = "empty"});
  EXPECT_FALSE(d.contains("state"));
  EXPECT_FALSE(d.contains("plan"));
  EXPECT_TRUE(d["charts"].empty());
  EXPECT_EQ(d["epochs"]["count"], 0);
  const Json starting = DocumentOf({.title = "empty", .state = State{.phase = Phase::kStarting}});
  EXPECT_EQ(starting["state"], Json::parse(R"({"phase":"starting","why":"","figures":{}})"));
}

TEST(DocumentTest, StepsAreShownBeforeAnEpochHasEnded) {
  EXPECT_EQ(Titles(DocumentOf({.steps = {{"loss", {PointAt(1, .9)}}}})),
            std::vector<std::string>{"Loss of each step"});
}

TEST(DocumentTest, GapsAreNullAndEpochsWithoutATestAreNoPoints) {
  EpochHistory history;
  history.Add({.epoch = 1, .train = {{"loss", std::nan("")}}, .test = {{"loss", 1}}});
  history.Add({.epoch = 2, .train = {{"loss", std::numeric_limits<double>::infinity()}}});
  history.Add({.epoch = 3, .train = {{"loss", 2}}, .test = {{"loss", 3}}});
  const Json d = DocumentOf({.epochs = history.Summary()});
  EXPECT_EQ(d["charts"][0]["series"][0]["points"], Json::parse("[[1,null],[2,null],[3,2]]"));
  EXPECT_EQ(d["charts"][0]["series"][1]["points"], Json::parse("[[1,1],[3,3]]"));
  EXPECT_EQ(d["epochs"]["rows"][1]["figures"], Json::parse("[null,null]"));
}

TEST(DocumentTest, ManyPointsAreGroupsWithTheirLeastAndLargest) {
  std::vector<CurvePoint> points;
  for (int i = 1; i <= 480; ++i) points.push_back(PointAt(i, i % 2 == 0 ? 1 : 3));
  const Json d = DocumentOf({.steps = {{"loss", points}}});
  const Json& drawn = d["charts"][0]["series"][0]["points"];
  ASSERT_EQ(drawn.size(), 240u);
  EXPECT_EQ(drawn[0], Json::parse("[1,2,2,1,3]"));
  EXPECT_EQ(drawn[239], Json::parse("[479,480,2,1,3]"));
}

TEST(DocumentTest, TextThatIsNoUtf8StaysText) {
  const Json d = DocumentOf({.title = "caf\xe9 </script>"});
  EXPECT_EQ(d["title"], "caf\xef\xbf\xbd </script>");
}

// The limit that report.h states, at a length of a long night: 15,000 epochs, a million steps.
TEST(DocumentTest, IsSmallHoweverLongTheRun) {
  EpochHistory history;
  std::map<std::string, Curve> steps;
  Curve times;
  for (int64_t e = 1; e <= 15'000; ++e) {
    const double loss = 1 / std::sqrt(static_cast<double>(e) + 0.123456789);
    history.Add(
        {e, {{"loss", loss}, {"accuracy", 1 - loss}}, {{"loss", loss}, {"accuracy", loss}}, 1});
  }
  for (int i = 1; i <= 1'000'000; ++i) {
    const double value = 1 / std::sqrt(i + 0.123456789);
    steps["loss"].Add(i, value);
    steps["accuracy"].Add(i, 1 - value);
    times.Add(i, value);
  }
  PlanView plan;
  for (int i = 0; i < 5'000; ++i) {
    plan.devices.push_back("12/cuda:" + std::to_string(i));
    plan.variables.push_back({.name = "decoder_layer_11.attention.kernel_" + std::to_string(i),
                              .type = "f32[1024,4096]",
                              .layout = "{*, batch+model}",
                              .split = {{}, {"batch", "model"}},
                              .shard = "f32[1024,512]",
                              .bytes = 2097152});
  }
  plan.groups = {{"workers", plan.devices}};
  plan.num_devices = 5'000;
  const Report report{
      .epochs = history.Summary(),
      .steps = {{"loss", steps["loss"].points()}, {"accuracy", steps["accuracy"].points()}},
      .step_seconds = times.points(),
      .plan = plan};
  const std::string text = Document(report);
  EXPECT_LT(text.size(), 150'000u);
  const Json d = Json::parse(text);
  for (const Json& chart : d["charts"]) {
    for (const Json& series : chart["series"]) {
      EXPECT_LE(series["points"].size(), static_cast<size_t>(kMostPoints));
      EXPECT_GE(series["points"].size(), 120u);
    }
  }
  EXPECT_LE(d["epochs"]["rows"].size(), 42u);
  EXPECT_EQ(d["plan"]["variables"].size(), kMostVariables);
  EXPECT_EQ(d["plan"]["variableCount"], 5'000);
  EXPECT_EQ(d["plan"]["devices"].size(), kMostDevices);
  EXPECT_EQ(d["plan"]["groups"][0][1].size(), kMostDevices);
  EXPECT_EQ(d["plan"]["groups"][0][2], 5'000);
}

}  // namespace
}  // namespace meshtrain::report
