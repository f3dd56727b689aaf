// SPDX-License-Identifier: Apache-2.0
// Which backends make a machine, what is said of those that do not, and devices that two of them see.
#include "support/samples.hpp"
#include "weft/backend/backend.hpp"
#include "weft/runtime/machine.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace twin_device_test {

using samples::error_of;
using weft::backend_options;
using weft::errc;
using weft::machine;
using weft::machine_options;

struct named {
  const char* name;
  const char* uuid;
  const char* pci_address;
};

/// Devices and nothing else.
class listed final : public weft::backend {
 public:
  listed(const backend_options& options, weft::backend_kind kind, const std::vector<named>& all)
      : backend(identity(options, kind, all)) {}
  ~listed() override { close(); }

 private:
  static weft::backend_identity identity(const backend_options& options, weft::backend_kind kind,
                                         const std::vector<named>& all) {
    weft::backend_identity of{kind, options.first_device, {}, {}};
    for (const named& one : all) {
      weft::device_description made;
      made.name = one.name;
      made.kind = kind;
      made.uuid = one.uuid;
      made.pci_address = one.pci_address;
      made.memory = weft::bytes{1024};
      made.compute_units = 1;
      if (options.leave_out && options.leave_out(made)) continue;
      of.devices.push_back(made);
    }
    of.layout = weft::host_topology(static_cast<int>(of.devices.size()), weft::bytes{1024});
    of.layout.name = to_string(kind);
    for (std::size_t i = 0; i < of.devices.size(); ++i) of.layout.devices[i].pci_address = of.devices[i].pci_address;
    return of;
  }
};

weft::result<std::unique_ptr<weft::backend>> open_near(const backend_options& options) noexcept {
  return std::unique_ptr<weft::backend>{std::make_unique<listed>(
      options, weft::backend_kind::cuda,
      std::vector<named>{{"near A", "uuid-a", "0000:01:00.0"}, {"near B", "uuid-b", "0000:02:00.0"}})};
}
weft::result<std::unique_ptr<weft::backend>> open_far(const backend_options& options) noexcept {
  return std::unique_ptr<weft::backend>{std::make_unique<listed>(
      options, weft::backend_kind::hip,
      std::vector<named>{{"far A", "uuid-a", ""}, {"far B", "other", "0000:02:00.0"}, {"far C", "uuid-c", ""}})};
}
weft::result<std::unique_ptr<weft::backend>> open_same(const backend_options& options) noexcept {
  return std::unique_ptr<weft::backend>{
      std::make_unique<listed>(options, weft::backend_kind::opencl, std::vector<named>{{"same A", "uuid-a", ""}})};
}
weft::result<std::unique_ptr<weft::backend>> open_broken(const backend_options&) noexcept {
  return weft::error{.code = errc::resource_exhausted, .what = "the driver said 42"};
}

machine_options with(std::string backends) {
  machine_options options;
  options.backend = std::move(backends);
  options.more_backends = {{weft::backend_kind::cuda, "near", &open_near},
                           {weft::backend_kind::hip, "far", &open_far},
                           {weft::backend_kind::opencl, "same", &open_same},
                           {weft::backend_kind::cuda, "broken", &open_broken}};
  return options;
}

std::vector<std::string> names_of(const machine& m) {
  std::vector<std::string> names;
  for (const weft::device& d : m.devices()) names.push_back(d.name());
  return names;
}
bool notes_say(const machine& m, std::string_view text) {
  for (const std::string& note : m.notes()) {
    if (note.find(text) != std::string::npos) return true;
  }
  return false;
}
const weft::backend_status& status_of(const machine& m, std::string_view name) {
  for (const weft::backend_status& b : m.backends()) {
    if (b.name == name) return b;
  }
  throw std::runtime_error("no such backend");
}

TEST(a_device_that_two_backends_see, appears_with_the_first_of_them_and_a_note) {
  const machine near_first{with("near,far")};
  EXPECT_EQ(names_of(near_first), (std::vector<std::string>{"near A", "near B", "far C"}));
  EXPECT_TRUE(notes_say(near_first, "far A of the backend 'far' is left out: it is near A"));
  EXPECT_TRUE(notes_say(near_first, "with the same uuid"));
  EXPECT_TRUE(notes_say(near_first, "at the same PCI address"));
  EXPECT_EQ(near_first.layout().device_count(), 3);
  const machine far_first{with(" far , near ")};
  EXPECT_EQ(names_of(far_first), (std::vector<std::string>{"far A", "far B", "far C"}));
  EXPECT_TRUE(status_of(far_first, "near").available);
  EXPECT_NE(status_of(far_first, "near").why.find("earlier backend"), std::string::npos);
}

TEST(a_device_that_two_backends_see, appears_twice_when_that_is_asked_for) {
  machine_options options = with("near,far");
  options.keep_duplicates = true;
  const machine m{options};
  EXPECT_EQ(names_of(m), (std::vector<std::string>{"near A", "near B", "far A", "far B", "far C"}));
  EXPECT_EQ(m[3].pci_address(), "0000:02:00.0");
  EXPECT_EQ(m.layout().device_count(), 5);
}

TEST(a_device_that_two_backends_see, may_be_all_that_a_backend_has) {
  const machine m{with("near,same")};
  EXPECT_EQ(names_of(m), (std::vector<std::string>{"near A", "near B"}));
  EXPECT_NE(status_of(m, "same").why.find("earlier backend"), std::string::npos);
}

TEST(a_device_that_two_backends_see, is_no_matter_where_one_backend_is_opened) {
  EXPECT_EQ(names_of(machine{with("far")}), (std::vector<std::string>{"far A", "far B", "far C"}));
}

TEST(several_backends, leave_the_others_unopened_and_say_so) {
  const machine m{with("near")};
  EXPECT_TRUE(status_of(m, "near").available);
  EXPECT_TRUE(status_of(m, "near").looked_at);
  for (const char* name : {"far", "broken", "host"}) {
    EXPECT_FALSE(status_of(m, name).available) << name;
    EXPECT_FALSE(status_of(m, name).looked_at) << name;
    EXPECT_NE(status_of(m, name).why.find("not looked at"), std::string::npos) << status_of(m, name).why;
  }
}

TEST(several_backends, fail_with_the_name_of_the_one_that_fails) {
  auto e = error_of([] { const machine m{with("near,broken")}; });
  EXPECT_EQ(e.code, errc::resource_exhausted);
  EXPECT_NE(e.what.find("'broken' cannot be opened: the driver said 42"), std::string::npos) << e.what;
  e = error_of([] { const machine m{with("near,fa")}; });
  EXPECT_EQ(e.code, errc::not_found);
  EXPECT_NE(e.what.find("did you mean 'far'"), std::string::npos) << e.what;
  e = error_of([] { const machine m{with("near,near")}; });
  EXPECT_EQ(e.code, errc::invalid_argument);
  EXPECT_NE(e.what.find("named twice"), std::string::npos) << e.what;
}

TEST(several_backends, go_on_without_one_that_need_not_be_there) {
  machine_options options = with("broken,near,nowhere");
  options.backend_required = false;
  const machine m{options};
  EXPECT_EQ(names_of(m), (std::vector<std::string>{"near A", "near B"}));
  EXPECT_TRUE(notes_say(m, "'broken' is left out: the driver said 42"));
  EXPECT_TRUE(notes_say(m, "no backend 'nowhere'"));
  EXPECT_FALSE(notes_say(m, "fell back"));
  options = with("nowhere,elsewhere");
  options.backend_required = false;
  const machine best{options};
  EXPECT_TRUE(notes_say(best, "no backend 'nowhere'"));
  EXPECT_TRUE(notes_say(best, "no backend of 'nowhere,elsewhere' is in this build; fell back to the best one"));
}

TEST(several_backends, are_refused_what_only_one_can_do) {
  machine_options options = with("host,near");
  options.clock = weft::clock_kind::virtual_time;
  auto e = error_of([&] { const machine m{options}; });
  EXPECT_EQ(e.code, errc::unsupported);
  EXPECT_NE(e.what.find("virtual time"), std::string::npos) << e.what;
  options = with("host,near");
  options.check_order = true;
  e = error_of([&] { const machine m{options}; });
  EXPECT_EQ(e.code, errc::unsupported);
  EXPECT_NE(e.what.find("check_order"), std::string::npos) << e.what;
  options = with("near,far");
  options.sim = "pair_nvlink";
  EXPECT_EQ(error_of([&] { const machine m{options}; }).code, errc::invalid_argument);
}

TEST(several_backends, play_a_topology_on_the_host_beside_the_others) {
  machine_options options = with("near,host");
  options.sim = "pair_nvlink";
  const machine m{options};
  EXPECT_EQ(m.device_count(), 4);
  EXPECT_TRUE(m.layout().can_access(weft::device_id{2}, weft::device_id{3}));
  EXPECT_FALSE(m.layout().can_access(weft::device_id{1}, weft::device_id{2}));
  EXPECT_EQ(m.layout().nodes[2].name, "gpu2");
}

TEST(several_backends, with_a_device_that_offers_nothing_say_what_is_not_offered) {
  const machine m{with("host,near")};
  const weft::device empty = m[m.device_count() - 1];
  EXPECT_EQ(error_of([&] { const weft::buffer<int> b(empty, 10); }).code, errc::unsupported);
  EXPECT_EQ(error_of([&] { const weft::stream s{empty}; }).code, errc::unsupported);
  const weft::buffer<int> works{m[0], 10};
  EXPECT_NO_THROW(m.synchronize());
}

class environment {
 public:
  explicit environment(const char* value) {
    setenv("WEFT_BACKEND", value, 1);  // NOLINT(concurrency-mt-unsafe): in the one thread of a test
  }
  ~environment() { unsetenv("WEFT_BACKEND"); }  // NOLINT(concurrency-mt-unsafe)
  environment(const environment&) = delete;
  environment& operator=(const environment&) = delete;
};

TEST(the_environment, names_several_backends_too) {
  const environment set{"host,null"};
  machine_options options;
  options.devices = 2;
  const machine m{options};
  EXPECT_EQ(m.device_count(), 3);
  EXPECT_EQ(m[2].kind(), weft::backend_kind::null);
}

TEST(the_environment, gives_way_to_a_program_that_asks_for_what_the_host_plays) {
  const environment set{"null"};
  const machine m = machine::load("pair_nvlink");
  EXPECT_EQ(m[0].kind(), weft::backend_kind::host);
  EXPECT_TRUE(notes_say(m, "WEFT_BACKEND"));
  machine_options options;
  options.clock = weft::clock_kind::virtual_time;
  EXPECT_EQ(machine{options}[0].kind(), weft::backend_kind::host);
}

}  // namespace twin_device_test
