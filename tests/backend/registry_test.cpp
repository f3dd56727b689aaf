// SPDX-License-Identifier: Apache-2.0
#include "weft/backend/registry.hpp"

#include "weft/backend/backend.hpp"

#include <gtest/gtest.h>

#include <set>

namespace registry_test {

using weft::device_id;
using weft::errc;
using weft::stream_handle;

std::unique_ptr<weft::backend> null_backend() {
  weft::backend_options options;
  options.first_device = device_id{3};
  auto opened = weft::find_backend("null")->open(options);
  EXPECT_TRUE(opened);
  return std::move(opened).value();
}

TEST(backend_registry, gives_every_backend_of_the_build_once_with_the_null_one_last) {
  std::set<std::string_view> names;
  for (const weft::backend_entry& entry : weft::built_backends()) {
    EXPECT_TRUE(names.insert(entry.name).second) << entry.name << " twice";
    EXPECT_EQ(entry.name, to_string(entry.kind));
    EXPECT_EQ(weft::find_backend(entry.name), &entry);
  }
  EXPECT_TRUE(names.contains("host"));
  EXPECT_EQ(weft::built_backends().back().name, "null") << "it is never preferred to one that does something";
}

TEST(backend_registry, does_not_know_other_names) {
  for (const char* name : {"", "hos", "hostt", "HOST", "nul", "automatic"})
    EXPECT_EQ(weft::find_backend(name), nullptr) << name;
}

TEST(null_backend, is_one_device_with_the_id_it_was_told) {
  const auto b = null_backend();
  EXPECT_EQ(b->kind(), weft::backend_kind::null);
  EXPECT_EQ(b->first_device(), device_id{3});
  ASSERT_EQ(b->devices().size(), 1U);
  EXPECT_EQ(b->devices()[0].capabilities, weft::capability::none);
  EXPECT_TRUE(b->devices()[0].simulated);
  EXPECT_EQ(b->layout().device_count(), 1);
}

TEST(null_backend, answers_what_it_does_not_offer_with_a_reason_that_names_it) {
  const auto b = null_backend();
  const device_id d{3};
  const stream_handle s{1};
  int word = 0;
  std::size_t asked = 0;
  const auto expect_unsupported = [&](const auto& answer, std::string_view what) {
    ++asked;
    ASSERT_FALSE(answer) << what;
    EXPECT_EQ(answer.error().code, errc::unsupported) << what;
    EXPECT_NE(answer.error().what.find("null"), std::string::npos) << answer.error().what;
    EXPECT_GT(answer.error().what.size(), 20U) << "no reason: " << answer.error().what;
  };
  expect_unsupported(b->memory(d), "memory");
  expect_unsupported(b->allocate(d, weft::bytes{1}, weft::memory_kind::device), "allocate");
  expect_unsupported(b->release(&word), "release");
  expect_unsupported(b->adopt(d, &word, weft::bytes{4}), "adopt");
  expect_unsupported(b->map_peer(d, &word, weft::bytes{4}), "map_peer");
  expect_unsupported(b->unmap_peer(d, &word), "unmap_peer");
  expect_unsupported(b->create_stream(d, 0), "create_stream");
  expect_unsupported(b->default_stream(d), "default_stream");
  expect_unsupported(b->record(s), "record");
  expect_unsupported(b->wait_event(s, {}), "wait_event");
  expect_unsupported(b->write_value(s, {&word}), "write_value");
  expect_unsupported(b->wait_value(s, {&word}), "wait_value");
  expect_unsupported(b->create_gate(), "create_gate");
  expect_unsupported(b->synchronize(s, weft::no_deadline, {}), "synchronize");
  expect_unsupported(b->copy(s, {}), "copy");
  const std::array<weft::copy_request, 2> requests{};
  expect_unsupported(b->copy_batch(s, requests), "copy_batch");
  EXPECT_EQ(b->watch_traffic({}), 0U);
  EXPECT_FALSE(b->copies_through(b->first_device(), b->first_device()));
  expect_unsupported(b->copy_through(s, nullptr, {}), "copy_through");
  expect_unsupported(b->fill(s, {}), "fill");
  expect_unsupported(b->launch(s, {}), "launch");
  expect_unsupported(b->call(s, [] { return weft::result<void>{}; }), "call");
  expect_unsupported(b->reset(d), "reset");
  expect_unsupported(b->copy_batch(s, {}), "copy_batch of nothing");
  EXPECT_EQ(asked, 22U);
}

TEST(null_backend, checks_arguments_as_every_backend_does) {
  const auto b = null_backend();
  const device_id d{3}, stranger{4};
  int word = 0;
  const auto code = [](const auto& answer) { return answer ? errc{} : answer.error().code; };
  EXPECT_EQ(code(b->memory(stranger)), errc::invalid_device);
  EXPECT_EQ(code(b->enable_peer(d, d)), errc::invalid_device);
  EXPECT_EQ(code(b->peer_atomics(d, d, weft::atomic_operation::exchange)), errc::invalid_device);
  EXPECT_EQ(code(b->map_peer(d, nullptr, weft::bytes{4})), errc::invalid_argument);
  EXPECT_EQ(code(b->export_memory(&word, weft::bytes{0}, weft::handle_family::allocation)), errc::invalid_argument);
  EXPECT_EQ(code(b->prefetch(stream_handle{1}, &word, weft::bytes{4})), errc::invalid_argument);
  EXPECT_EQ(code(b->host_window(d, &word, weft::bytes{4})), errc::not_found);
  EXPECT_EQ(code(b->write_value(stream_handle{1}, {.address = &word, .size = 3})), errc::invalid_argument);
  weft::copy_request from_null;
  from_null.dst = &word;
  from_null.shape.width = 4;
  EXPECT_EQ(code(b->copy(stream_handle{1}, from_null)), errc::invalid_argument);
  const weft::device_right right{stranger, weft::access_right::read};
  EXPECT_EQ(code(b->set_access(&word, weft::bytes{4}, {&right, 1})), errc::invalid_device);
}

TEST(null_backend, a_closed_backend_begins_nothing_and_ends_everything) {
  const auto b = null_backend();
  const device_id d{3};
  int word = 0;
  b->close();
  b->close();
  EXPECT_EQ(b->memory(d).error().code, errc::machine_closed);
  EXPECT_EQ(b->allocate(d, weft::bytes{1}, weft::memory_kind::device).error().code, errc::machine_closed);
  EXPECT_TRUE(b->release(&word));
  EXPECT_TRUE(b->idle(stream_handle{1}));
  EXPECT_TRUE(b->drain(d, weft::no_deadline));
  EXPECT_FALSE(b->peer_enabled(d, d));
  EXPECT_TRUE(b->streams_of(d).empty());
}

TEST(null_backend, answers_questions_with_what_is_so) {
  const auto b = null_backend();
  const device_id d{3};
  const auto peer = b->peer(d, d);
  ASSERT_TRUE(peer);
  EXPECT_FALSE(peer->can_access);
  EXPECT_FALSE(peer->why.empty());
  EXPECT_FALSE(b->peer_enabled(d, d));
  EXPECT_EQ(b->peer_epoch(), b->peer_epoch());
  EXPECT_TRUE(b->streams_of(d).empty());
  EXPECT_TRUE(b->idle(stream_handle{1}));
  EXPECT_TRUE(b->drain(d, weft::no_deadline));
  EXPECT_TRUE(b->traffic().bytes_on_link.empty());
  EXPECT_EQ(b->lost(d), nullptr);
  int word = 0;
  const auto found = b->find(&word);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, errc::not_found);
  const auto before = b->now();
  EXPECT_LE(before, b->now());
  b->destroy_stream(stream_handle{1});
  b->close();
}

TEST(null_backend, waits_for_a_record_that_somebody_completes) {
  const auto b = null_backend();
  const weft::event_ref record{new weft::event_record};
  EXPECT_FALSE(b->ready(*record));
  record->complete(nullptr);
  EXPECT_TRUE(b->ready(*record));
  EXPECT_EQ(b->wait(*record, weft::no_deadline, {}), weft::wait_outcome::ok);
}

}  // namespace registry_test
