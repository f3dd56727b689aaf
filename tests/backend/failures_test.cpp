// SPDX-License-Identifier: Apache-2.0
#include "backends/common/failures.hpp"

#include "core/errors/make_error.hpp"

#include <gtest/gtest.h>

namespace weft::test {
namespace failures_test {

using common::failure_ledger;
using common::failures;
using common::shared_cause;

shared_cause failed(const char* words) { return shared_error(make_error(errc::copy_failed, words)); }

TEST(failure_ledger, a_failure_skips_what_follows_until_it_was_reported) {
  failure_ledger stream;
  stream.open(true);
  EXPECT_TRUE(stream.is_clear());
  const shared_cause first = failed("first");
  stream.add(first, 3);
  EXPECT_FALSE(stream.is_clear());
  EXPECT_EQ(stream.skips(2), nullptr) << "it was handed over before";
  EXPECT_EQ(stream.skips(4), first);
  stream.add(failed("skipped by the first"), 4);
  EXPECT_EQ(stream.report(6), first);
  EXPECT_EQ(stream.report(6), nullptr) << "once";
  EXPECT_EQ(stream.skips(6), first) << "submitted before the report";
  EXPECT_EQ(stream.skips(7), nullptr);
  EXPECT_EQ(stream.skips(6), first) << "of the earlier ones some may still be asked about: a driver works ahead";
  stream.ended(6);
  EXPECT_FALSE(stream.is_clear()) << "nothing behind it has ended";
  stream.ended(7);
  EXPECT_TRUE(stream.is_clear());
}

TEST(failure_ledger, an_older_failure_replaces_a_younger_one_that_was_seen_before) {
  failure_ledger stream;
  stream.open(true);
  const shared_cause younger = failed("younger"), older = failed("older");
  stream.add(younger, 9);
  stream.add(older, 5);
  EXPECT_EQ(stream.skips(9), older);
  EXPECT_EQ(stream.report(9), older);
}

TEST(failure_ledger, a_failure_that_was_reported_by_its_event_is_not_reported_by_the_stream) {
  failure_ledger stream;
  stream.open(true);
  const shared_cause cause = failed("once");
  stream.add(cause, 1);
  stream.reported(cause, 1);
  EXPECT_EQ(stream.report(1), nullptr);
  EXPECT_EQ(stream.skips(2), nullptr);
}

TEST(failure_ledger, a_failure_that_was_told_skips_nothing_that_came_after_that) {
  failure_ledger stream;
  stream.open(false);
  const shared_cause cause = failed("once");
  stream.add(cause, 1);
  static_cast<void>(stream.report(3));
  EXPECT_EQ(stream.skips(3), cause);
  static_cast<void>(stream.report(5));  // another thread, which began to wait before
  EXPECT_EQ(stream.skips(4), nullptr);
}

TEST(failure_ledger, a_stream_that_reports_no_errors_goes_on_after_a_synchronization) {
  failure_ledger stream;
  stream.open(false);
  const shared_cause cause = failed("the copy reports it");
  stream.add(cause, 1);
  EXPECT_EQ(stream.skips(2), cause);
  EXPECT_EQ(stream.report(2), nullptr);
  EXPECT_EQ(stream.skips(3), nullptr);
}

TEST(failure_ledger, a_reset_of_the_device_leaves_nothing_to_report) {
  failure_ledger stream;
  stream.open(true);
  stream.add(failed("lost"), 1);
  stream.forgive(4);
  EXPECT_EQ(stream.report(4), nullptr);
  EXPECT_EQ(stream.skips(5), nullptr);
}

TEST(failures, a_lost_device_keeps_its_first_cause_and_calls_are_given_it) {
  failures machine{device_id{2}, 2, nullptr};
  EXPECT_TRUE(machine.lose(device_id{3},
                           shared_error(make_error(errc::illegal_access, "bad kernel", error_scope::device, 700))));
  EXPECT_FALSE(machine.lose(device_id{3}, failed("later")));
  EXPECT_FALSE(machine.is_over(device_id{2}));
  ASSERT_TRUE(machine.is_over(device_id{3}));
  EXPECT_EQ(machine.cause_of_loss(device_id{3})->what, "bad kernel");
  EXPECT_EQ(machine.lost(device_id{3})->code, errc::device_lost);
  EXPECT_EQ(machine.lost(device_id{3})->what, "gpu3 is lost since: bad kernel");
  EXPECT_EQ(machine.lost(device_id{3})->native_code, 700);
  machine.restore(device_id{3});
  EXPECT_EQ(machine.lost(device_id{3}), nullptr);
  EXPECT_EQ(machine.cause_of_loss(device_id{3}), nullptr);
}

TEST(failures, a_refusal_gives_the_first_cause_that_holds) {
  failures machine{device_id{0}, 1, nullptr};
  failure_ledger stream;
  stream.open(true);
  std::stop_source stop;
  const event_ref before = machine.create_gate();
  EXPECT_EQ(machine.refusal(device_id{0}, stream, 2, before, stop.get_token()), nullptr);
  stop.request_stop();
  EXPECT_EQ(machine.refusal(device_id{0}, stream, 2, before, stop.get_token())->code, errc::cancelled);
  const shared_cause skips = failed("the stream's");
  stream.add(skips, 1);
  EXPECT_EQ(machine.refusal(device_id{0}, stream, 2, before, stop.get_token()), skips);
  const shared_cause of_dependency = failed("the dependency's");
  ASSERT_TRUE(machine.take_gate(*before));
  EXPECT_FALSE(machine.take_gate(*before)) << "it is open already";
  before->complete(of_dependency);
  before->drop();
  EXPECT_EQ(machine.refusal(device_id{0}, stream, 2, before, stop.get_token()), of_dependency);
  ASSERT_TRUE(machine.lose(device_id{0}, failed("gone")));
  EXPECT_EQ(machine.refusal(device_id{0}, stream, 2, before, stop.get_token())->code, errc::device_lost);
  ASSERT_TRUE(machine.close());
  EXPECT_EQ(machine.refusal(device_id{0}, stream, 2, before, stop.get_token())->what,
            "the machine was closed before the operation on gpu0 started");
}

TEST(failures, a_close_opens_every_gate_and_no_gate_is_made_afterwards) {
  failures machine{device_id{0}, 1, nullptr};
  const event_ref gate = machine.create_gate();
  EXPECT_TRUE(machine.close());
  EXPECT_FALSE(machine.close());
  ASSERT_TRUE(gate->finished());
  EXPECT_EQ(gate->cause()->what, "the machine was closed");
  EXPECT_FALSE(machine.take_gate(*gate));
  EXPECT_FALSE(machine.create_gate());
}

TEST(track_numbers, the_smallest_free_number_is_taken) {
  common::track_numbers numbers;
  EXPECT_EQ(numbers.take(), 0U);
  EXPECT_EQ(numbers.take(), 1U);
  numbers.give_back(0);
  EXPECT_EQ(numbers.take(), 0U);
  EXPECT_EQ(numbers.take(), 2U);
}

}  // namespace failures_test
}  // namespace weft::test
