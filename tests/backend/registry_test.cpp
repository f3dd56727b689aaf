// SPDX-License-Identifier: Apache-2.0
#include "weft/backend/registry.hpp"

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
  expect_unsupported(b->prefetch(s, &word, weft::bytes{4}), "prefetch");
  expect_unsupported(b->advise(&word, weft::bytes{4}, weft::memory_advice::none, d), "advise");
  expect_unsupported(b->enable_peer(d, d), "enable_peer");
  expect_unsupported(b->disable_peer(d, d), "disable_peer");
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
  expect_unsupported(b->host_window(d, &word, weft::bytes{4}), "host_window");
  EXPECT_EQ(b->watch_traffic({}), 0U);
  EXPECT_FALSE(b->copies_through(b->first_device(), b->first_device()));
  expect_unsupported(b->copy_through(s, nullptr, {}), "copy_through");
  expect_unsupported(b->fill(s, {}), "fill");
  expect_unsupported(b->launch(s, {}), "launch");
  expect_unsupported(b->call(s, [] { return weft::result<void>{}; }), "call");
  expect_unsupported(b->reset(d), "reset");
  EXPECT_EQ(asked, 26U);
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
  EXPECT_TRUE(b->copy_batch(stream_handle{1}, {})) << "a batch of nothing asks for nothing";
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
