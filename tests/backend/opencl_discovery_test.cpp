// SPDX-License-Identifier: Apache-2.0
// What is found of OpenCL on a computer, and what is said where there is none. Loaders look for drivers once in a
// process: what depends on the drivers runs in processes of its own.
#include "runtime/machine_state.hpp"
#include "support/opencl_machines.hpp"
#include "support/samples.hpp"
#include "weft/core/log.hpp"

#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

namespace opencl_discovery_test {

namespace fs = std::filesystem;
using samples::opencl_memory;

class opencl_discovery : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = samples::why_no_opencl(); !why.empty()) GTEST_SKIP() << why;
  }
};

weft::error error_of_opening(const weft::opencl::settings& wanted) {
  auto opened = weft::opencl::open_with({}, wanted);
  if (!opened) return std::move(opened).error();
  weft::error none;
  none.code = weft::errc::not_ready;
  none.what = "it opened";
  return none;
}

TEST(opencl_library, a_missing_library_is_unsupported_and_named) {
  weft::opencl::settings wanted;
  wanted.library = "libNoSuchOpenCL.so.1";
  const weft::error cause = error_of_opening(wanted);
  EXPECT_EQ(cause.code, weft::errc::unsupported) << to_string(cause);
  EXPECT_NE(cause.what.find("libNoSuchOpenCL.so.1"), std::string::npos) << cause.what;
}

TEST(opencl_library, another_library_is_unsupported_and_its_missing_function_named) {
  weft::opencl::settings wanted;
  wanted.library = "libm.so.6";
  const weft::error cause = error_of_opening(wanted);
  EXPECT_EQ(cause.code, weft::errc::unsupported) << to_string(cause);
  EXPECT_NE(cause.what.find("clGetPlatformIDs"), std::string::npos) << cause.what;
}

TEST(opencl_library, is_why_a_machine_has_no_such_backend) {
  weft::machine_options options;
  options.more_backends = {{weft::backend_kind::opencl, "abacus", [](const weft::backend_options& o) noexcept {
                              weft::opencl::settings wanted;
                              wanted.library = "libNoSuchOpenCL.so.1";
                              return weft::opencl::open_with(o, wanted);
                            }}};
  options.backend = "abacus";
  const weft::error cause = samples::error_of([&] { const weft::machine m{options}; });
  EXPECT_EQ(cause.code, weft::errc::unsupported) << to_string(cause);
  options.backend_required = false;
  const weft::machine m{options};
  ASSERT_FALSE(m.backends().empty());
  EXPECT_EQ(m.backends()[0].name, "abacus");
  EXPECT_FALSE(m.backends()[0].available);
  EXPECT_NE(m.backends()[0].why.find("libNoSuchOpenCL.so.1"), std::string::npos) << m.backends()[0].why;
  EXPECT_EQ(m[0].kind(), weft::backend_kind::host);
}

TEST(opencl_machine, a_machine_in_virtual_time_is_unsupported) {
  weft::machine_options options = samples::opencl_options();
  options.clock = weft::clock_kind::virtual_time;
  EXPECT_EQ(samples::error_of([&] { const weft::machine m{options}; }).code, weft::errc::unsupported);
}

/// Digits in groups of eight, four, four, four and twelve.
bool is_a_uuid(const std::string& text) {
  std::string form = text;
  for (char& c : form) c = std::string_view{"0123456789abcdef"}.find(c) != std::string_view::npos ? 'x' : c;
  return form == "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
}

TEST_F(opencl_discovery, finds_devices_with_names_memory_units_and_different_identities) {
  const weft::machine m{samples::opencl_options()};
  std::set<std::string> identities;
  for (const weft::device& d : m.devices()) {
    EXPECT_EQ(d.kind(), weft::backend_kind::opencl);
    EXPECT_FALSE(d.name().empty());
    EXPECT_FALSE(d.simulated());
    EXPECT_GT(d.total_memory().value(), 0U);
    EXPECT_GT(d.compute_units(), 0);
    EXPECT_TRUE(d.has(weft::capability::kernels));
    EXPECT_FALSE(d.has(weft::capability::priorities));
    EXPECT_TRUE(is_a_uuid(d.uuid())) << d.uuid();
    identities.insert(d.uuid());
  }
  EXPECT_EQ(identities.size(), static_cast<std::size_t>(m.device_count()));
  EXPECT_FALSE(m.simulated());
}

TEST_F(opencl_discovery, gives_each_device_its_own_links_to_the_host_and_none_to_itself) {
  for (const opencl_memory how : {opencl_memory::shared, opencl_memory::buffers}) {
    const weft::machine m{samples::opencl_options(how)};
    const weft::topology& layout = m.layout();
    ASSERT_EQ(layout.to_host.size(), static_cast<std::size_t>(m.device_count()));
    for (int d = 0; d < m.device_count(); ++d) {
      EXPECT_EQ(layout.to_host[static_cast<std::size_t>(d)].links.size(), 1U) << d;
      EXPECT_FALSE(layout.can_access(weft::device_id{d}, weft::device_id{d})) << d;
    }
  }
}

TEST_F(opencl_discovery, says_without_shared_memory_that_no_device_reaches_another_and_why) {
  const weft::machine m{samples::opencl_options(opencl_memory::buffers)};
  if (m.device_count() < 2) GTEST_SKIP() << "one device";
  EXPECT_FALSE(m[0].has(weft::capability::peer_to_peer));
  EXPECT_FALSE(m[0].has(weft::capability::unified_memory));
  const auto about = weft::detail::state_of(m)->backends().front()->peer(weft::device_id{0}, weft::device_id{1});
  ASSERT_TRUE(about);
  EXPECT_FALSE(about->can_access);
  EXPECT_TRUE(about->can_copy) << "devices of one context";
  EXPECT_NE(about->why.find("shared memory"), std::string::npos) << about->why;
}

/// The log hook is told what is in the notes; a test that splits devices has no use for it.
class quiet_log {
 public:
  quiet_log() : before_(weft::set_log_hook([](weft::log_level, std::string_view) {})) {}
  quiet_log(const quiet_log&) = delete;
  quiet_log& operator=(const quiet_log&) = delete;
  ~quiet_log() { weft::set_log_hook(before_); }

 private:
  decltype(weft::set_log_hook({})) before_;
};

std::string joined(const std::vector<std::string>& notes) {
  std::string text;
  for (const std::string& note : notes) text += note + "\n";
  return text;
}

TEST_F(opencl_discovery, offers_each_device_as_as_many_parts_as_are_asked_for) {
  const quiet_log quiet;
  const weft::machine whole{samples::opencl_options()};
  weft::machine_options options = samples::opencl_options();
  options.logical_devices = 2;
  const weft::machine parts{options};
  if (whole[0].compute_units() < 2) GTEST_SKIP() << "a device of one compute unit";
  ASSERT_EQ(parts.device_count(), 2 * whole.device_count()) << joined(parts.notes());
  std::set<std::string> identities;
  for (const weft::device& d : parts.devices()) {
    const weft::device from = whole[d.id().value() / 2];
    EXPECT_EQ(d.compute_units(), from.compute_units() / 2);
    EXPECT_EQ(d.part_of(), from.uuid());
    EXPECT_TRUE(from.part_of().empty());
    identities.insert(d.uuid());
    const auto data = samples::pattern(4097, d.id().index());
    EXPECT_TRUE(samples::same(samples::contents(samples::filled(d, data)), data)) << d.uuid();
  }
  EXPECT_EQ(identities.size(), static_cast<std::size_t>(parts.device_count()));
  const auto data = samples::pattern(70'001, 9);
  const auto src = samples::filled(parts[0], data);
  const samples::byte_buffer dst{parts[1], data.size()};
  weft::copy(dst, src);
  EXPECT_TRUE(samples::same(samples::contents(dst), data)) << "between two parts of one device";
}

TEST_F(opencl_discovery, leaves_a_device_whole_that_has_too_few_units_and_notes_it) {
  const quiet_log quiet;
  const weft::machine whole{samples::opencl_options()};
  weft::machine_options options = samples::opencl_options();
  options.logical_devices = whole[0].compute_units() + 1;
  const weft::machine parts{options};
  EXPECT_EQ(parts[0].uuid(), whole[0].uuid());
  EXPECT_TRUE(parts[0].part_of().empty());
  const std::string notes = joined(parts.notes());
  EXPECT_NE(notes.find("stays whole"), std::string::npos) << notes;
  EXPECT_NE(notes.find(std::to_string(whole[0].compute_units()) + " compute unit"), std::string::npos) << notes;
}

TEST_F(opencl_discovery, splits_devices_as_the_environment_says_where_the_program_does_not) {
  const quiet_log quiet;
  weft::machine_options options = samples::opencl_options();
  options.logical_devices = 1;
  const int whole = weft::machine{options}.device_count();
  if (weft::machine{options}[0].compute_units() < 2) GTEST_SKIP() << "a device of one compute unit";
  // NOLINTBEGIN(concurrency-mt-unsafe): the one thread of a test
  setenv("WEFT_LOGICAL_DEVICES", "2", 1);
  EXPECT_EQ(weft::machine{options}.device_count(), whole) << "the program was not asked";
  options.logical_devices.reset();
  EXPECT_EQ(weft::machine{options}.device_count(), 2 * whole);
  setenv("WEFT_LOGICAL_DEVICES", "none", 1);
  const weft::error cause = samples::error_of([&] { const weft::machine m{options}; });
  unsetenv("WEFT_LOGICAL_DEVICES");
  // NOLINTEND(concurrency-mt-unsafe)
  EXPECT_EQ(cause.code, weft::errc::invalid_argument);
  EXPECT_NE(cause.what.find("WEFT_LOGICAL_DEVICES is 'none'"), std::string::npos) << cause.what;
}

// ---- drivers, in processes of their own -----------------------------------------------------------------------------

/// A folder of files that name drivers; gone with this object.
class vendor_folder {
 public:
  vendor_folder() {
    std::string pattern = (fs::path{testing::TempDir()} / "weft_icd_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  vendor_folder(const vendor_folder&) = delete;
  vendor_folder& operator=(const vendor_folder&) = delete;
  ~vendor_folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  void add(const std::string& file, const std::string& library) const {
    std::ofstream{path_ / file} << library << "\n";
  }
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

/// Opens the backend with the drivers of a folder, and ends: 0 with devices, 3 without; the reason is printed.
[[noreturn]] void open_with_drivers(const std::string& folder) {
  setenv("OCL_ICD_VENDORS", folder.c_str(), 1);  // NOLINT(concurrency-mt-unsafe): a process of its own
  samples::opencl_options();                     // the environment of PoCL
  auto opened = weft::opencl::open({});
  std::fprintf(stderr, "%s\n", opened ? "opened" : to_string(opened.error()).c_str());
  std::fflush(stderr);
  std::error_code ignored;
  fs::remove_all(folder, ignored);  // nothing of this process is destroyed
  std::_Exit(opened ? 0 : 3);
}

class opencl_drivers : public testing::Test {
 protected:
  void SetUp() override {
    // not by asking it: the process that a test starts comes this way too, before it has chosen its drivers
    if (::dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL) == nullptr) GTEST_SKIP() << "libOpenCL.so.1 is not installed";
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
};

TEST_F(opencl_drivers, none_at_all_is_told_with_the_folder) {
  const vendor_folder folder;
  EXPECT_EXIT(open_with_drivers(folder.path()), testing::ExitedWithCode(3), "no \\.icd file in .*weft_icd_");
}

TEST_F(opencl_drivers, a_file_that_points_nowhere_is_told_with_the_file_and_the_library) {
  const vendor_folder folder;
  folder.add("broken.icd", "libnosuchdriver.so.7");
  EXPECT_EXIT(open_with_drivers(folder.path()), testing::ExitedWithCode(3), "broken\\.icd names 'libnosuchdriver");
}

TEST_F(opencl_drivers, a_file_that_points_nowhere_does_not_keep_the_others_away) {
  std::string driver;
  std::ifstream{"/etc/OpenCL/vendors/pocl.icd"} >> driver;
  if (driver.empty()) GTEST_SKIP() << "PoCL is not installed in /etc/OpenCL/vendors";
  const vendor_folder folder;
  folder.add("broken.icd", "libnosuchdriver.so.7");
  folder.add("pocl.icd", driver);
  EXPECT_EXIT(open_with_drivers(folder.path()), testing::ExitedWithCode(0), "opened");
}

}  // namespace opencl_discovery_test
