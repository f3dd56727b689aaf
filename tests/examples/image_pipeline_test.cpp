// SPDX-License-Identifier: Apache-2.0
#include "image_pipeline/image_pipeline.hpp"

#include "image_pipeline/gaussian.hpp"
#include "image_pipeline/split_image.hpp"
#include "weft/core/raise.hpp"
#include "weft/memory/peer_access.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <tuple>

namespace image_pipeline_test {

using namespace weft::images;
namespace fs = std::filesystem;

named_image patterned(const std::string& name, int width, int height, int channels) {
  named_image made{name, {width, height, channels, {}}};
  for (std::size_t i = 0; i < static_cast<std::size_t>(width * height * channels); ++i) {
    made.picture.pixels.push_back(static_cast<std::uint8_t>(i * 31 + i / 97 + i * i / 1009));
  }
  return made;
}

std::vector<named_image> images_of_odd_sizes() {
  std::vector<named_image> all;
  for (const int channels : {1, 3}) {
    for (const auto& [width, height] :
         {std::pair{1, 1}, {1, 7}, {7, 1}, {2, 2}, {3, 4}, {5, 5}, {64, 64}, {65, 63}, {257, 129}}) {
      all.push_back(patterned(std::to_string(all.size()), width, height, channels));
    }
  }
  return all;
}

class image_pipeline : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "weft-pipeline-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder = name;
  }
  void TearDown() override { fs::remove_all(folder); }

  fs::path folder;
};

weft::machine four_devices() {
  weft::machine_options options;
  options.backend = "host";
  options.devices = 4;
  return weft::machine{options};
}

void expect_good(const pipeline_report& report, std::size_t images) {
  for (const auto& failure : report.failures) ADD_FAILURE() << failure.why;
  EXPECT_EQ(report.images, images);
  EXPECT_EQ(report.pixels_checked, report.pixels);
  EXPECT_EQ(report.pixels_wrong, 0U);
}

TEST_F(image_pipeline, blurs_images_of_any_size_as_the_reference_does) {
  const auto images = images_of_odd_sizes();
  expect_good(run_image_pipeline(four_devices(), images, {}), images.size());
}

TEST_F(image_pipeline, what_it_writes_is_the_blur_of_what_it_was_given) {
  const auto images = images_of_odd_sizes();
  pipeline_options options;
  options.output = folder / "made" / "on the way";
  options.verify = false;
  const auto report = run_image_pipeline(four_devices(), images, options);
  ASSERT_EQ(report.files.size(), images.size());
  for (std::size_t i = 0; i < images.size(); ++i) {
    const auto back = read_image(report.files[i]);
    ASSERT_TRUE(back) << back.error().what;
    EXPECT_EQ(count_wrong_pixels(images[i].picture, *back), 0U) << report.files[i];
  }
}

TEST_F(image_pipeline, a_constant_image_stays_constant) {
  std::vector<named_image> images;
  for (const int value : {0, 1, 127, 128, 254, 255}) {
    images.push_back({std::to_string(value), {61, 47, 3, std::vector<std::uint8_t>(61 * 47 * 3, std::uint8_t(value))}});
  }
  pipeline_options options;
  options.output = folder;
  const auto report = run_image_pipeline(four_devices(), images, options);
  expect_good(report, images.size());
  for (std::size_t i = 0; i < images.size(); ++i) EXPECT_EQ(*read_image(report.files[i]), images[i].picture);
}

TEST_F(image_pipeline, images_go_to_the_devices_in_turn) {
  const auto images = images_of_odd_sizes();  // 18
  const auto report = run_image_pipeline(four_devices(), images, {});
  ASSERT_EQ(report.devices.size(), 4U);
  std::uint64_t pixels = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(report.devices[i].device, weft::device_id{static_cast<int>(i)});
    EXPECT_EQ(report.devices[i].images, i < 2 ? 5U : 4U);
    pixels += report.devices[i].pixels;
  }
  EXPECT_EQ(pixels, report.pixels);
}

TEST_F(image_pipeline, results_are_gathered_by_direct_copies_where_devices_are_peers) {
  const auto images = images_of_odd_sizes();
  const auto report = run_image_pipeline(weft::machine::load("pair_nvlink"), images, {});
  expect_good(report, images.size());
  EXPECT_EQ(report.gathered.local, 9U);
  EXPECT_EQ(report.gathered.direct, 9U);
  EXPECT_EQ(report.gathered.staged, 0U);
  EXPECT_TRUE(report.notes.empty()) << report.notes.front();
}

TEST_F(image_pipeline, results_are_staged_where_devices_are_no_peers_and_it_says_so) {
  const auto images = images_of_odd_sizes();
  const auto report = run_image_pipeline(weft::machine::load("ring_3_no_p2p"), images, {});
  expect_good(report, images.size());
  EXPECT_EQ(report.gathered.local, 6U);
  EXPECT_EQ(report.gathered.direct, 0U);
  EXPECT_EQ(report.gathered.staged, 12U);
  ASSERT_EQ(report.notes.size(), 4U);  // two devices, two directions
  EXPECT_EQ(report.notes.front(), "gpu1 cannot map gpu0: no peer path");
}

TEST_F(image_pipeline, runs_on_the_devices_that_were_named_and_gathers_on_the_first) {
  const auto images = images_of_odd_sizes();
  pipeline_options options;
  options.devices = {weft::device_id{5}, weft::device_id{2}};
  const auto report = run_image_pipeline(weft::machine::load("dgx_h100"), images, options);
  expect_good(report, images.size());
  ASSERT_EQ(report.devices.size(), 2U);
  EXPECT_EQ(report.devices[0].device, weft::device_id{5});
  EXPECT_EQ(report.gathered.local, 9U);
  EXPECT_EQ(report.gathered.direct, 9U);
}

TEST_F(image_pipeline, a_link_that_drops_data_is_not_used) {
  auto broken = weft::value_or_raise(weft::load_topology("pair_nvlink"));
  weft::topology_fault fault;
  fault.what = weft::topology_fault::kind::drops_data;
  fault.from = weft::device_id{1};
  fault.to = weft::device_id{0};
  fault.nth = 0;
  broken.faults.push_back(fault);
  weft::machine_options machine_options;
  machine_options.machine = broken;

  const auto images = images_of_odd_sizes();
  const auto report = run_image_pipeline(weft::machine{machine_options}, images, {});
  expect_good(report, images.size());
  EXPECT_EQ(report.gathered.direct, 0U);
  EXPECT_EQ(report.gathered.staged, 9U);
  ASSERT_EQ(report.notes.size(), 1U);
  EXPECT_TRUE(report.notes.front().starts_with("the link gpu1 -> gpu0 is not used: ")) << report.notes.front();

  machine_options.verify_peers = weft::peer_verification::never;
  const auto wrong = run_image_pipeline(weft::machine{machine_options}, images, {});
  EXPECT_GT(wrong.pixels_wrong, 0U) << "the check of every pixel would not have seen it";
}

TEST_F(image_pipeline, an_image_that_does_not_fit_a_device_is_named_and_the_others_go_on) {
  weft::machine_options small;
  small.backend = "host";
  small.devices = 2;
  small.memory_per_device = weft::bytes{std::uint64_t{4} << 20};
  std::vector<named_image> images;
  images.push_back(patterned("first", 100, 100, 3));
  images.push_back(patterned("huge", 2000, 2000, 3));
  images.push_back(patterned("third", 100, 100, 1));
  images.push_back(patterned("fourth", 101, 100, 1));
  images.push_back(patterned("fifth", 10, 10, 1));
  images.push_back(patterned("sixth", 10, 10, 3));
  pipeline_options options;
  options.output = folder;
  const auto report = run_image_pipeline(weft::machine{small}, images, options);
  EXPECT_EQ(report.images, 5U);
  EXPECT_EQ(report.files.size(), 5U);
  EXPECT_EQ(report.pixels_wrong, 0U);
  ASSERT_EQ(report.failures.size(), 1U);
  EXPECT_EQ(report.failures[0].name, "huge");
  EXPECT_TRUE(report.failures[0].why.starts_with("huge was not processed on gpu1: ")) << report.failures[0].why;
}

TEST_F(image_pipeline, a_copy_that_fails_costs_one_image_and_names_it) {
  auto broken = weft::value_or_raise(weft::load_topology("pair_nvlink"));
  weft::topology_fault fault;
  fault.what = weft::topology_fault::kind::copy_fails;
  fault.from = weft::device_id{1};
  fault.to = weft::device_id{0};
  fault.nth = 2;
  broken.faults.push_back(fault);
  weft::machine_options machine_options;
  machine_options.machine = broken;
  const auto images = images_of_odd_sizes();
  pipeline_options options;
  const auto report = run_image_pipeline(weft::machine{machine_options}, images, options);
  EXPECT_EQ(report.images, images.size() - 1);
  EXPECT_EQ(report.pixels_wrong, 0U);
  ASSERT_EQ(report.failures.size(), 1U);
  EXPECT_TRUE(report.failures[0].why.find("gpu1") != std::string::npos) << report.failures[0].why;
}

TEST_F(image_pipeline, an_image_that_is_none_is_named_and_the_others_go_on) {
  std::vector<named_image> images{patterned("good", 9, 9, 1),
                                  {"two channels", {3, 3, 2, std::vector<std::uint8_t>(18)}},
                                  {"short", {3, 3, 1, std::vector<std::uint8_t>(8)}},
                                  {"nothing", {}}};
  const auto report = run_image_pipeline(four_devices(), images, {});
  EXPECT_EQ(report.images, 1U);
  ASSERT_EQ(report.failures.size(), 3U);
  EXPECT_EQ(report.failures[0].why, "two channels cannot be processed: it has 2 channels; 1 and 3 are possible");
  EXPECT_EQ(report.failures[1].why, "short cannot be processed: it has 8 bytes instead of 9");
  EXPECT_EQ(report.failures[2].why, "nothing cannot be processed: it has 0 x 0 pixels");
}

TEST_F(image_pipeline, no_image_is_no_work_and_no_error) {
  const auto report = run_image_pipeline(four_devices(), {}, {});
  EXPECT_EQ(report.images, 0U);
  EXPECT_EQ(report.images_per_second, 0.0);
  EXPECT_TRUE(report.failures.empty());
}

TEST_F(image_pipeline, devices_that_do_not_exist_or_are_named_twice_are_refused) {
  const auto images = images_of_odd_sizes();
  for (const std::vector<weft::device_id>& wrong :
       {std::vector{weft::device_id{4}}, {weft::device_id{-1}}, {weft::device_id{1}, weft::device_id{1}}}) {
    pipeline_options options;
    options.devices = wrong;
    try {
      static_cast<void>(run_image_pipeline(four_devices(), images, options));
      ADD_FAILURE() << "no error";
    } catch (const weft::error_exception& e) {
      EXPECT_EQ(e.code(), weft::errc::invalid_device) << e.what();
    }
  }
}

TEST_F(image_pipeline, any_number_of_images_in_flight_gives_the_same_result) {
  const auto images = images_of_odd_sizes();
  for (const int in_flight : {1, 3, 50}) {
    pipeline_options options;
    options.in_flight = in_flight;
    expect_good(run_image_pipeline(four_devices(), images, options), images.size());
  }
  pipeline_options negative;
  negative.in_flight = -1;
  EXPECT_THROW(static_cast<void>(run_image_pipeline(four_devices(), images, negative)), weft::error_exception);
}

TEST_F(image_pipeline, an_output_that_cannot_be_written_is_named_and_the_others_are_written) {
  const std::vector<named_image> images{patterned("a.png", 9, 9, 1), patterned("b.png", 9, 9, 1)};
  fs::create_directories(folder / "a.png" / "in the way");
  pipeline_options options;
  options.output = folder;
  const auto report = run_image_pipeline(four_devices(), images, options);
  ASSERT_EQ(report.failures.size(), 1U);
  EXPECT_NE(report.failures[0].why.find("a.png"), std::string::npos);
  EXPECT_EQ(report.files, std::vector<fs::path>{folder / "b.png"});
  EXPECT_EQ(std::distance(fs::directory_iterator{folder}, {}), 2);  // and nothing else is left behind
}

TEST_F(image_pipeline, two_results_never_have_one_name) {
  const auto names_of = [](const std::vector<std::string>& files) {
    std::vector<named_image> images;
    for (const auto& file : files) images.push_back({file, {}});
    return output_names(images);
  };
  using list = std::vector<std::string>;
  EXPECT_EQ(names_of({"a.jpg", "b.png", "c"}), (list{"a.png", "b.png", "c.png"}));
  EXPECT_EQ(names_of({"a.jpg", "a.png"}), (list{"a.jpg.png", "a.png.png"}));
  EXPECT_EQ(names_of({"a.jpg", "a.jpg.png", "a.png"}), (list{"a.jpg.png", "a.jpg.2.png", "a.png.png"}));
}

TEST_F(image_pipeline, peer_access_is_as_it_was_when_it_has_ended) {
  const weft::machine m = weft::machine::load("pair_nvlink");
  const auto images = images_of_odd_sizes();
  static_cast<void>(run_image_pipeline(m, images, {}));
  EXPECT_FALSE(weft::peer_enabled(m, weft::device_id{0}, weft::device_id{1}));
  EXPECT_FALSE(weft::peer_enabled(m, weft::device_id{1}, weft::device_id{0}));
}

TEST_F(image_pipeline, every_access_of_the_kernel_is_one_that_it_declares) {
  weft::machine_options checked;
  checked.backend = "host";
  checked.devices = 2;
  checked.check_access = true;
  const auto images = images_of_odd_sizes();
  expect_good(run_image_pipeline(weft::machine{checked}, images, {}), images.size());
}

// ---- one picture over several devices -------------------------------------------------------------------------------

constexpr weft::balance strategies[] = {
    weft::balance::automatic, weft::balance::static_equal, weft::balance::dynamic,      weft::balance::guided,
    weft::balance::weighted,  weft::balance::memory_aware, weft::balance::work_stealing};

weft::spread_options divided(weft::balance strategy, std::size_t devices) {
  weft::spread_options how;
  how.strategy = strategy;
  if (strategy == weft::balance::weighted) how.weights.resize(devices, 1.0);
  if (strategy == weft::balance::weighted) how.weights.front() = 3.0;
  return how;
}

TEST(split_image, gives_the_bits_of_one_device_however_it_is_divided) {
  // heights: fewer rows than devices, rows that are all within two of a border, and more
  for (const auto& [width, height, channels] :
       {std::tuple{7, 1, 1}, {5, 3, 3}, {64, 11, 1}, {33, 257, 3}, {700, 500, 1}}) {
    const image picture = patterned("one", width, height, channels).picture;
    const image whole = blur_split(weft::machine::load("one"), picture, {}).result;
    EXPECT_EQ(count_wrong_pixels(picture, whole), 0U) << width << " x " << height;
    for (const weft::balance strategy : strategies) {
      const auto split = blur_split(four_devices(), picture, divided(strategy, 4));
      EXPECT_EQ(split.result, whole) << to_string(strategy) << ", " << width << " x " << height;
      std::int64_t rows = 0;
      for (const auto& d : split.launch.devices) rows += d.items;
      EXPECT_EQ(rows, height) << to_string(strategy);
    }
  }
}

TEST(split_image, brings_each_device_its_rows_and_two_of_each_neighbour) {
  const image picture = huge_image(100, 400);
  const auto split = blur_split(four_devices(), picture, divided(weft::balance::static_equal, 4));
  ASSERT_EQ(split.launch.devices.size(), 4U);
  for (const auto& d : split.launch.devices) EXPECT_EQ(d.items, 100) << to_string(d.device);
  // the first and the last have one neighbour, the two between have two
  EXPECT_EQ(split.moved.host_to_device + split.moved.between_devices, 100U * (400 + 2 * (1 + 2 + 2 + 1)));
}

TEST(split_image, on_devices_of_different_speed_gives_more_rows_to_the_faster) {
  weft::machine_options options;
  options.sim = "mixed_3";
  options.clock = weft::clock_kind::virtual_time;
  const weft::machine m{options};
  const image picture = huge_image(64, 1000);
  weft::spread_options how = divided(weft::balance::guided, 3);
  how.model = weft::kernel_cost{.seconds = 0, .seconds_per_item = 1e-4};
  const auto split = blur_split(m, picture, how);
  ASSERT_EQ(split.launch.devices.size(), 3U);
  EXPECT_NEAR(static_cast<double>(split.launch.devices[0].items), 450, 20);
  EXPECT_NEAR(static_cast<double>(split.launch.devices[1].items), 300, 20);
  EXPECT_NEAR(static_cast<double>(split.launch.devices[2].items), 250, 20);
  EXPECT_TRUE(split.launch.simulated);
  EXPECT_EQ(split.result, blur_split(weft::machine::load("one"), picture, {}).result);
}

TEST(split_image, touches_only_the_rows_that_the_kernel_declares) {
  weft::machine_options checked;
  checked.backend = "host";
  checked.devices = 3;
  checked.check_access = true;
  const image picture = huge_image(50, 90);
  EXPECT_EQ(count_wrong_pixels(picture, blur_split(weft::machine{checked}, picture, {}).result), 0U);
}

TEST(split_image, a_malformed_image_is_refused) {
  for (const image& wrong : {image{}, image{3, 3, 2, std::vector<std::uint8_t>(18)}, image{3, 3, 1, {1, 2}}}) {
    try {
      static_cast<void>(blur_split(four_devices(), wrong, {}));
      ADD_FAILURE() << "no error";
    } catch (const weft::error_exception& e) {
      EXPECT_EQ(e.code(), weft::errc::invalid_argument) << e.what();
    }
  }
  EXPECT_THROW(static_cast<void>(huge_image(0, 5)), weft::error_exception);
  EXPECT_THROW(static_cast<void>(huge_image(1 << 20, 1 << 20)), weft::error_exception);
}

}  // namespace image_pipeline_test
