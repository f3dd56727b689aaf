// SPDX-License-Identifier: Apache-2.0
// What is found of OpenCL on a computer, and what is said where there is none. Loaders look for drivers once in a
// process: what depends on the drivers runs in processes of its own.
#include "runtime/machine_state.hpp"
#include "support/opencl_machines.hpp"
#include "support/samples.hpp"
#include "weft/core/log.hpp"

#include <cstdio>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

namespace {

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

TEST(opencl_library, that_is_not_there_is_unsupported_and_named) {
  weft::opencl::settings wanted;
  wanted.library = "libNoSuchOpenCL.so.1";
  const weft::error cause = error_of_opening(wanted);
  EXPECT_EQ(cause.code, weft::errc::unsupported) << to_string(cause);
  EXPECT_NE(cause.what.find("libNoSuchOpenCL.so.1"), std::string::npos) << cause.what;
}

TEST(opencl_library, that_is_another_library_is_unsupported_and_the_missing_function_named) {
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

TEST(opencl_machine, in_virtual_time_is_unsupported) {
  weft::machine_options options = samples::opencl_options();
  options.clock = weft::clock_kind::virtual_time;
  EXPECT_EQ(samples::error_of([&] { const weft::machine m{options}; }).code, weft::errc::unsupported);
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
  const auto about = m.state()->backends().front()->peer(weft::device_id{0}, weft::device_id{1});
  ASSERT_TRUE(about);
  EXPECT_FALSE(about->can_access);
  EXPECT_NE(about->why.find("shared memory"), std::string::npos) << about->why;
}

TEST_F(opencl_discovery, splits_devices_when_asked_and_says_which_it_cannot) {
  weft::machine_options options = samples::opencl_options();
  options.more_backends = {{weft::backend_kind::opencl, "parts", [](const weft::backend_options& o) noexcept {
                              weft::opencl::settings wanted;
                              wanted.units_per_device = 1;
                              return weft::opencl::open_with(o, wanted);
                            }}};
  options.backend = "parts";
  std::string said;
  const auto before = weft::set_log_hook([&](weft::log_level, std::string_view text) { said += text; });
  const weft::machine parts{options};
  weft::set_log_hook(before);
  const weft::machine whole{samples::opencl_options()};
  int units = 0;
  for (const weft::device& d : whole.devices()) units += d.compute_units();
  if (parts.device_count() == whole.device_count()) {
    EXPECT_TRUE(units == whole.device_count() || said.find("not split") != std::string::npos) << said;
    return;
  }
  std::set<std::string> identities;
  for (const weft::device& d : parts.devices()) {
    EXPECT_EQ(d.compute_units(), 1) << d.uuid();
    identities.insert(d.uuid());
    const auto data = samples::pattern(4097, d.id().index());
    EXPECT_TRUE(samples::same(samples::contents(samples::filled(d, data)), data)) << d.uuid();
  }
  EXPECT_EQ(identities.size(), static_cast<std::size_t>(parts.device_count()));
}

// ---- drivers, in processes of their own -----------------------------------------------------------------------------

/// A folder of files that name drivers; gone with this object.
class vendor_folder {
 public:
  explicit vendor_folder(const std::string& name) : path_(fs::path{testing::TempDir()} / ("weft_icd_" + name)) {
    fs::remove_all(path_);
    fs::create_directories(path_);
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
  const vendor_folder folder{"empty"};
  EXPECT_EXIT(open_with_drivers(folder.path()), testing::ExitedWithCode(3), "no \\.icd file in .*weft_icd_empty");
}

TEST_F(opencl_drivers, a_file_that_points_nowhere_is_told_with_the_file_and_the_library) {
  const vendor_folder folder{"nowhere"};
  folder.add("broken.icd", "libnosuchdriver.so.7");
  EXPECT_EXIT(open_with_drivers(folder.path()), testing::ExitedWithCode(3), "broken\\.icd names 'libnosuchdriver");
}

TEST_F(opencl_drivers, a_file_that_points_nowhere_does_not_keep_the_others_away) {
  std::string driver;
  std::ifstream{"/etc/OpenCL/vendors/pocl.icd"} >> driver;
  if (driver.empty()) GTEST_SKIP() << "PoCL is not installed in /etc/OpenCL/vendors";
  const vendor_folder folder{"mixed"};
  folder.add("broken.icd", "libnosuchdriver.so.7");
  folder.add("pocl.icd", driver);
  EXPECT_EXIT(open_with_drivers(folder.path()), testing::ExitedWithCode(0), "opened");
}

}  // namespace
