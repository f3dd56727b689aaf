// SPDX-License-Identifier: Apache-2.0
#include "weft/runtime/machine.hpp"

#include "support/hang.hpp"
#include "support/samples.hpp"
#include "support/untold_stream.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/runtime/barrier.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <stdexcept>
#include <thread>

namespace machine_test {

using samples::error_of;
using weft::device_id;
using weft::errc;
using weft::machine;
using weft::machine_options;

/// A variable of the environment for as long as it lives. No thread runs when it is set.
class variable {
 public:
  variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~variable() { ::unsetenv(name_); }
  variable(const variable&) = delete;
  variable& operator=(const variable&) = delete;

 private:
  const char* name_;
};

TEST(environment, names_a_variable_that_nobody_reads_and_the_nearest_that_somebody_does) {
  const variable misspelt{"WEFT_TOPOLGY", "dgx_h100"};
  const variable foreign{"WEFT_ZZZZZZZZZZZZ", "1"};
  const variable of_a_virtual_driver{"WEFT_VIRTUAL_HIP_VERSION", "60240091"};
  const machine m{machine_options{}};
  std::string notes;
  for (const std::string& note : m.notes()) notes += note + "\n";
  EXPECT_NE(notes.find("WEFT_TOPOLGY is not known; did you mean WEFT_TOPOLOGY?"), std::string::npos) << notes;
  EXPECT_NE(notes.find("WEFT_ZZZZZZZZZZZZ is not known\n"), std::string::npos) << notes;
  EXPECT_EQ(notes.find("WEFT_VIRTUAL_HIP_VERSION"), std::string::npos) << notes;
}

TEST(environment, says_so_where_a_topology_is_not_played_because_the_program_asks_for_devices) {
  const variable named{"WEFT_TOPOLOGY", "dgx_h100"};
  machine_options options;
  options.backend = "host";
  options.devices = 3;
  const machine m{options};
  EXPECT_EQ(m.device_count(), 3);
  std::string notes;
  for (const std::string& note : m.notes()) notes += note + "\n";
  EXPECT_NE(notes.find("WEFT_TOPOLOGY is 'dgx_h100', and the program asks for 3 devices"), std::string::npos) << notes;
}

TEST(environment, says_so_where_a_topology_is_not_played_because_the_program_names_another_backend) {
  const variable named{"WEFT_TOPOLOGY", "pair_nvlink"};
  machine_options options;
  options.backend = "null";
  const machine m{options};
  EXPECT_EQ(m.devices().front().kind(), weft::backend_kind::null);
  std::string notes;
  for (const std::string& note : m.notes()) notes += note + "\n";
  const std::string why =
      "WEFT_TOPOLOGY is 'pair_nvlink', and the program asks for the backend 'null' without the host";
  EXPECT_NE(notes.find(why), std::string::npos) << notes;
  options.backend = "null,host";
  EXPECT_EQ(machine{options}.device_count("host"), 2) << "the host is named, too";
}

TEST(environment, a_topology_and_a_backend_that_does_not_play_it_are_a_contradiction_of_the_variables) {
  const variable topology{"WEFT_TOPOLOGY", "pair_nvlink"};
  const variable backend{"WEFT_BACKEND", "null"};
  EXPECT_EQ(error_of([] { static_cast<void>(machine{}); }).code, errc::invalid_argument);
}

TEST(environment, knows_every_variable_that_a_backend_reads) {
  const variable quiet{"WEFT_CUDA_PARTITIONS", "1"};
  const machine m{machine_options{}};
  for (const std::string& note : m.notes()) EXPECT_EQ(note.find("WEFT_CUDA_PARTITIONS"), std::string::npos) << note;
}

TEST(machine, the_host_notes_that_its_devices_are_not_split) {
  machine_options options;
  options.backend = "host";
  options.devices = 3;
  options.logical_devices = 2;
  const machine m{options};
  EXPECT_EQ(m.device_count(), 3);
  ASSERT_FALSE(m.notes().empty());
  EXPECT_NE(m.notes().back().find("not split into 2"), std::string::npos) << m.notes().back();
  EXPECT_TRUE(m[0].part_of().empty());
  options.logical_devices = 1;
  EXPECT_TRUE(machine{options}.notes().empty());
}

TEST(machine, a_wrong_number_of_logical_devices_is_refused) {
  for (const int wrong : {0, -1, weft::max_devices + 1}) {
    machine_options options;
    options.logical_devices = wrong;
    const weft::error cause = samples::error_of([&] { const machine m{options}; });
    EXPECT_EQ(cause.code, weft::errc::invalid_argument) << wrong;
    EXPECT_NE(cause.what.find("logical_devices is " + std::to_string(wrong)), std::string::npos) << cause.what;
  }
}

TEST(environment, chooses_backend_topology_and_strictness) {
  {
    const variable backend{"WEFT_BACKEND", "null"};
    EXPECT_EQ(machine{}.devices().front().kind(), weft::backend_kind::null);
    machine_options options;
    options.backend = "host";
    EXPECT_EQ(machine{options}.devices().front().kind(), weft::backend_kind::host)
        << "what the program says goes first";
  }
  {
    const variable topology{"WEFT_TOPOLOGY", "mi300x_8"};
    EXPECT_EQ(machine{}.device_count(), 8);
    machine_options options;
    options.sim = "pair_nvlink";
    EXPECT_EQ(machine{options}.device_count(), 2);
    options.sim.reset();
    options.machine = samples::wired(3);
    EXPECT_EQ(machine{options}.device_count(), 3);
  }
  {
    const variable empty{"WEFT_TOPOLOGY", ""};
    const variable host{"WEFT_BACKEND", "host"};  // also where there is a GPU
    EXPECT_EQ(machine{}.layout().name, "host") << "an empty variable is none";
  }
  for (const char* wrong : {"0", "-1", "4x", "1e3", "99999999999999999999", " 4"}) {
    const variable devices{"WEFT_DEVICES", wrong};
    EXPECT_EQ(error_of([] { static_cast<void>(machine{}); }).code, errc::invalid_argument) << wrong;
  }
}

TEST(machine_options, refuse_a_topology_for_another_backend_than_the_host) {
  machine_options options;
  options.backend = "null";
  options.sim = "one";
  EXPECT_EQ(error_of([&] { static_cast<void>(machine{options}); }).code, errc::invalid_argument);
}

TEST(selection, gives_ids_in_the_order_asked_and_says_why_not_the_others) {
  const machine m = machine::load("mixed_3");
  const auto found = m.devices({.ids = {device_id{2}, device_id{0}, device_id{2}}});
  ASSERT_EQ(found.size(), 2U) << "a device named twice is one device";
  EXPECT_EQ(found[0].id(), device_id{2});
  EXPECT_EQ(found[1].id(), device_id{0});
  ASSERT_EQ(found.rejected().size(), 1U);
  EXPECT_EQ(found.rejected()[0].id, device_id{1});
  EXPECT_FALSE(found.rejected()[0].why.empty());
  EXPECT_EQ(error_of([&] { static_cast<void>(m.devices({.ids = {device_id{3}}})); }).code, errc::invalid_device);
  EXPECT_EQ(error_of([&] { static_cast<void>(m.devices({.exclude = {device_id{-1}}})); }).code, errc::invalid_device);
}

TEST(selection, combines_every_condition) {
  const machine m = machine::load("mixed_3");
  weft::device_query where;
  where.min_compute_units = m[1].compute_units();
  where.min_memory = m[1].total_memory();
  auto found = m.devices(where);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found.rejected().size(), 1U);
  EXPECT_NE(found.rejected()[0].why.find("compute units"), std::string::npos) << found.rejected()[0].why;
  where.exclude = {device_id{0}};
  EXPECT_EQ(m.devices(where)[0].id(), device_id{1});
  const samples::byte_buffer taken{m[1], 4096};
  const auto none = m.find_devices(where);
  EXPECT_TRUE(none.empty());
  EXPECT_NE(none.rejected()[1].why.find("free"), std::string::npos)
      << "memory that is taken is not free: " << none.rejected()[1].why;
  const weft::error cause = error_of([&] { static_cast<void>(m.devices(where)); });
  EXPECT_EQ(cause.code, errc::not_found);
  for (const char* part : {"gpu0 excluded", "gpu1 has", "gpu2 has"})
    EXPECT_NE(cause.what.find(part), std::string::npos) << cause.what;
}

TEST(selection, orders_by_score_and_keeps_the_stable_order_of_equals) {
  const machine m = machine::load("dgx_h100");
  weft::device_query where;
  where.score = [](const weft::device& d) { return static_cast<double>(d.id().value() % 3); };
  where.at_most = 4;
  const auto found = m.devices(where);
  std::vector<int> ids;
  for (const weft::device& d : found) ids.push_back(d.id().value());
  EXPECT_EQ(ids, (std::vector<int>{2, 5, 1, 4}));
  EXPECT_EQ(found.rejected().size(), 4U);
  EXPECT_TRUE(std::is_sorted(found.rejected().begin(), found.rejected().end(),
                             [](const auto& a, const auto& b) { return a.id < b.id; }));
}

TEST(selection, puts_a_device_without_a_score_last) {
  const machine m = machine::load("dgx_h100");
  weft::device_query where;
  where.score = [](const weft::device& d) {
    const int number = d.id().value();
    return number % 3 == 0 ? std::nan("") : static_cast<double>(number);
  };
  std::vector<int> ids;
  for (const weft::device& d : m.devices(where)) ids.push_back(d.id().value());
  EXPECT_EQ(ids, (std::vector<int>{7, 5, 4, 2, 1, 0, 3, 6}));
}

TEST(selection, by_a_backend_that_is_absent_is_refused_or_falls_back_as_asked) {
  const machine m = machine::load("pair_nvlink");
  EXPECT_EQ(m.device_count("host"), 2);
  EXPECT_EQ(m.device_count("cuda"), 0);
  weft::device_query where;
  where.backend = "cuda";
  EXPECT_EQ(error_of([&] { static_cast<void>(m.devices(where)); }).code, errc::not_found);
  where.backend_required = false;
  const auto found = m.devices(where);
  EXPECT_EQ(found.size(), 2U);
  ASSERT_EQ(found.notes().size(), 1U);
  EXPECT_NE(found.notes()[0].find("cuda"), std::string::npos);
}

TEST(selection, by_needs_names_what_is_missing) {
  const machine m = machine::load("ring_3_no_p2p");
  weft::device_query where;
  where.needs = weft::capability::peer_to_peer | weft::capability::kernels;
  const auto found = m.find_devices(where);
  EXPECT_TRUE(found.empty());
  for (const auto& r : found.rejected()) EXPECT_EQ(r.why, "does not offer peer_to_peer");
}

TEST(selection, leaves_out_a_device_that_is_lost) {
  weft::topology layout = samples::wired(2);
  weft::topology_fault fault;
  fault.what = weft::topology_fault::kind::device_lost;
  fault.device = device_id{1};
  layout.faults.push_back(fault);
  const machine m = samples::play(layout);
  EXPECT_EQ(m.find_devices({}).size(), 2U);
  EXPECT_EQ(error_of([&] { weft::stream{m[1]}.call([] {}).wait(); }).code, errc::device_lost);
  EXPECT_EQ(m.find_devices({}).size(), 1U);
  EXPECT_NE(m.find_devices({}).rejected()[0].why.find("injected"), std::string::npos);
  m[1].reset();
  EXPECT_EQ(m.find_devices({}).size(), 2U);
}

TEST(device, is_taken_wherever_its_id_is) {
  const machine m = machine::load("dgx_h100");
  EXPECT_EQ(weft::can_access_peer(m, m[0], m[1]), weft::can_access_peer(m, m[0].id(), m[1].id()));
  const std::vector<weft::device_id> ids{m[2], m[0]};
  EXPECT_EQ(ids, (std::vector<weft::device_id>{weft::device_id{2}, weft::device_id{0}}));
  EXPECT_TRUE(m[1] == weft::device_id{1});
  EXPECT_EQ(to_string(m[1]), "gpu1");
}

TEST(synchronize_for, tells_the_failure_of_one_stream_although_another_is_late) {
  machine_options options;
  options.devices = 1;
  const machine m{options};
  const weft::stream fails{m[0]}, is_late{m[0]};
  samples::gate held;
  held.hold(is_late);
  fails.call([] { throw std::runtime_error{"of this stream"}; });
  while (!fails.idle()) std::this_thread::yield();
  const weft::error told = error_of([&] { static_cast<void>(m.synchronize_for(std::chrono::milliseconds{1})); });
  EXPECT_NE(told.what.find("of this stream"), std::string::npos) << told.what;
  held.open();
  EXPECT_EQ(m.synchronize_for(samples::only_a_hang), weft::wait_outcome::ok);
}

TEST(synchronize, tells_of_each_stream_that_failed_one_failure_a_call) {
  machine_options options;
  options.backend = "host";
  options.devices = 2;
  const machine m{options};
  const weft::stream a{m[0]}, b{m[0]}, c{m[1]}, d{m[1]};
  const auto told = [&] { return error_of([&] { m.synchronize(); }).what; };
  const auto says = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  const auto fail = [&] {
    const weft::event first = a.call([] { throw std::runtime_error{"of stream a"}; });
    d.wait(first);
    b.call([] { throw std::runtime_error{"of stream b"}; });
    return c.call([] { throw std::runtime_error{"of stream c"}; });
  };
  fail();
  EXPECT_PRED2(says, told(), "of stream a");
  EXPECT_PRED2(says, told(), "of stream b");
  EXPECT_PRED2(says, told(), "of stream c");
  EXPECT_EQ(told(), "nothing failed") << "what went from one stream to another is one failure";
  const weft::event kept = fail();
  EXPECT_PRED2(says, told(), "of stream a");
  EXPECT_PRED2(says, error_of([&] { m[0].synchronize(); }).what, "of stream b");
  EXPECT_PRED2(says, error_of([&] { kept.wait(); }).what, "of stream c");
  EXPECT_EQ(told(), "nothing failed") << "the waits have told them";
  fail();
  EXPECT_PRED2(says, told(), "of stream a");
  EXPECT_PRED2(says, error_of([&] { c.synchronize(); }).what, "of stream c");
  m[0].reset();
  EXPECT_EQ(told(), "nothing failed") << "of stream b, whose device was reset";
}

TEST(machine, says_that_it_or_what_is_of_it_was_moved_from) {
  machine m = machine::load("pair_nvlink");
  weft::device d = m[0];
  weft::stream order{d};
  weft::device_barrier barrier{m, {m[0]}};
  const machine other = std::move(m);
  const weft::device device = std::move(d);
  const weft::stream stream = std::move(order);
  // NOLINTBEGIN(bugprone-use-after-move): that is the question
  const auto refused = [](auto f, const char* what) {
    const weft::error cause = error_of(f);
    EXPECT_EQ(cause.code, errc::invalid_argument) << what;
    EXPECT_NE(cause.what.find(std::string{"an empty "} + what), std::string::npos) << cause.what;
  };
  refused([&] { static_cast<void>(m.closed()); }, "machine");
  refused([&] { static_cast<void>(m.device_count()); }, "machine");
  refused([&] { const weft::device_barrier late{m, {weft::device_id{0}}}; }, "machine");
  refused([&] { static_cast<void>(d.name()); }, "device");
  refused([&] { static_cast<void>(weft::stream{d}); }, "device");
  refused([&] { static_cast<void>(order.on()); }, "stream");
  refused([&] { static_cast<void>(barrier.arrive(order)); }, "stream");
  const weft::device_barrier moved = std::move(barrier);
  refused([&] { static_cast<void>(barrier.status()); }, "barrier");
  refused([&] { static_cast<void>(barrier.arrive(stream)); }, "barrier");
  refused([&] { barrier.reset(); }, "barrier");
  // NOLINTEND(bugprone-use-after-move)
  EXPECT_EQ(moved.status().participants, 1U);
}

TEST(device, keeps_its_identity_over_machines_and_differs_from_equal_models) {
  const machine one = machine::load("dgx_h100"), two = machine::load("dgx_h100");
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(one[i].uuid(), two[i].uuid());
    EXPECT_EQ(one[i].uuid().size(), 36U);
    for (int k = 0; k < i; ++k) EXPECT_NE(one[i].uuid(), one[k].uuid());
  }
  EXPECT_FALSE(one[0] == two[0]);
  EXPECT_TRUE(one[0] == one[device_id{0}]);
}

TEST(machine, synchronization_leaves_a_stream_behind_its_failure_to_the_owner_that_alone_is_told) {
  const machine m = samples::play(samples::wired(1));
  EXPECT_EQ(samples::untold_stream_fault(m, m[0].id()), "");
}

}  // namespace machine_test
