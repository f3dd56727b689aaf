// SPDX-License-Identifier: Apache-2.0
// Questions and answers between two devices, over a queue each way. Every question has a number of its own, and the
// place where its answer will go is not used for another one before that answer has come: an answer that is late finds
// nobody who waits for it, and cannot be taken for another question's.
#pragma once

#include "weft/channel/message_queue.hpp"
#include "weft/runtime/machine.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <source_location>
#include <stop_token>
#include <type_traits>
#include <utility>
#include <vector>

namespace weft {

/// The number of one call: a place in the client's table, and how often that place has been used.
struct call_id {
  std::uint32_t place = 0;
  std::uint32_t generation = 0;  // 0: no call

  friend bool operator==(const call_id&, const call_id&) = default;
};

/// A question as it travels.
template <message T>
struct numbered_request {
  call_id id;
  T body;
};
/// An answer as it travels. `answered` is 0 when the handler left without one; and without a call, when a question was
/// damaged, whose call nobody knows.
template <message T>
struct numbered_response {
  call_id id;
  std::uint32_t answered;
  T body;
};

struct request_options {
  std::size_t outstanding = 64;  // calls that may be without an answer at a time
  transfer_mode mode = transfer_mode::adaptive;
  std::chrono::nanoseconds timeout = std::chrono::seconds{5};  // of waiting forms that name no other
  bool validate = false;  // a checksum with every message: one that is damaged fails the calls without an answer
  waiting wait_policy = waiting::adaptive;
};

struct client_statistics {
  std::uint64_t calls = 0;      // questions sent
  std::uint64_t answers = 0;    // that found their caller
  std::uint64_t late = 0;       // that came after their call had been abandoned or ended by damage, and were dropped
  std::uint64_t strays = 0;     // that belong to no call, or came twice, and were dropped
  std::uint64_t refused = 0;    // begin() found no place
  std::uint64_t abandoned = 0;  // calls given up: by abandon(), by call() without an answer, or after damage

  friend bool operator==(const client_statistics&, const client_statistics&) = default;
};

struct server_statistics {
  std::uint64_t taken = 0;     // questions
  std::uint64_t answered = 0;  // answers sent
  std::uint64_t failed = 0;    // of them: without an answer, since the handler left by an exception
  std::uint64_t unsent = 0;    // answers that found the client gone

  friend bool operator==(const server_statistics&, const server_statistics&) = default;
};

/// What a call came to. The response is one only when the status is ok.
template <message Response>
struct call_result {
  queue_status status = queue_status::failed;
  Response response{};

  explicit operator bool() const noexcept { return status == queue_status::ok; }
};

/// A call that was begun, or why not.
struct begun_call {
  queue_status status = queue_status::failed;
  call_id id;

  explicit operator bool() const noexcept { return status == queue_status::ok; }
};

namespace detail {
/// Errors: invalid_argument for no calls, or more than a table holds.
[[nodiscard]] queue_options options_of_requests(const request_options& options, std::source_location where);

[[nodiscard]] inline std::chrono::nanoseconds left_until(std::chrono::steady_clock::time_point end) noexcept {
  const auto left = end - std::chrono::steady_clock::now();
  return left > left.zero() ? left : left.zero();
}

/// Whether an end has skipped a damaged message since the last look: asked after `failed`, which says that or the end.
template <message T>
[[nodiscard]] bool has_skipped(const receiver<T>& from, std::uint64_t& known) noexcept {
  const std::uint64_t now = from.statistics().corrupted;
  return std::exchange(known, now) != now;
}

/// The calls of one client, without their answers. A place goes from free to waiting to answered to free; or,
/// abandoned, from waiting to abandoned to free, when the late answer has come. Damage ends calls without telling which
/// answer is missing: their places are doubtful until their answers have come, or only the missing ones are left.
class call_table {
 public:
  enum class arrival : std::uint8_t { awaited, late, stray };

  explicit call_table(std::size_t places);

  [[nodiscard]] std::size_t size() const noexcept { return places_.size(); }
  [[nodiscard]] std::size_t outstanding() const noexcept { return places_.size() - free_.size(); }
  [[nodiscard]] bool is_full() const noexcept { return free_.empty(); }

  /// Takes a place; there is one.
  call_id open() noexcept;
  /// Gives back the place of a question that could not be sent.
  void undo(call_id id) noexcept { release(id.place); }
  /// Says whose an answer is. `id` came from the other side: it is compared before it is used.
  arrival arrive(call_id id) noexcept;
  [[nodiscard]] bool is_waiting(call_id id) const noexcept { return is(id, state::waiting); }
  [[nodiscard]] bool is_answered(call_id id) const noexcept { return is(id, state::answered); }
  /// Ends a call that was answered.
  void close(call_id id) noexcept { release(id.place); }
  /// False when it was no call.
  bool abandon(call_id id) noexcept;
  /// One answer will never come, and nobody knows whose: ends all calls without an answer, abandoned ones included. How
  /// many were waiting.
  std::size_t give_up_unanswered() noexcept;

 private:
  enum class state : std::uint8_t { free, waiting, answered, abandoned, doubtful };
  struct place {
    std::uint32_t generation = 0;
    state now = state::free;
  };
  [[nodiscard]] bool is(call_id id, state expected) const noexcept {
    return id.place < places_.size() && places_[id.place].generation == id.generation &&
           places_[id.place].now == expected;
  }
  void release(std::uint32_t at) noexcept {
    places_[at].now = state::free;
    free_.push_back(at);
  }
  /// Frees the doubtful places when no answer comes for any of them.
  void settle() noexcept;

  std::vector<place> places_;
  std::vector<std::uint32_t> free_;  // room for all of them from the start
  std::size_t doubtful_ = 0;         // places
  std::size_t missing_ = 0;          // answers of doubtful places that will never come
};
}  // namespace detail

/// The end that asks. At most `outstanding` calls are without an answer at a time, abandoned ones included: so neither
/// of the two queues is ever full, and no answer ever has to wait for a caller who has gone.
///
/// A question or an answer that does not have its checksum (request_options::validate) does not say whose it is: all
/// calls that are without an answer then fail. Their answers are dropped, and their places are used again, as after
/// abandon(); the place of the damaged call when the answers of the others have come.
///
/// Thread: one at a time. Cost: no allocation per call.
template <message Request, message Response>
class request_client {
 public:
  using outgoing = sender<numbered_request<Request>>;
  using incoming = receiver<numbered_response<Response>>;

  /// Over ends that are open already. Shape: each queue holds 4/3 of `outstanding`, since the space of what was read
  /// comes back a quarter of a ring at a time. `timeout` is what call() waits.
  request_client(outgoing to, incoming from, std::size_t outstanding,
                 std::chrono::nanoseconds timeout = std::chrono::seconds{5})
      : to_(std::move(to)), from_(std::move(from)), table_(outstanding), answers_(outstanding), timeout_(timeout) {}

  /// Asks, and waits for the answer up to request_options::timeout.
  /// ok; failed when its handler left by an exception, or when damage has ended the call. Else the call is abandoned,
  /// its answer dropped: timed_out; cancelled; closed when the server has gone; failed.
  call_result<Response> call(const Request& request, std::stop_token stop = {}) {
    return call_for(request, timeout_, std::move(stop));
  }
  call_result<Response> call_for(const Request& request, std::chrono::nanoseconds timeout, std::stop_token stop = {}) {
    const auto end = detail::end_of(timeout);
    begun_call begun = begin(request);
    while (begun.status == queue_status::full) {  // a place becomes free when an answer comes
      const queue_status status = take_one(end, stop);
      if (status != queue_status::ok) return {status, {}};
      begun = begin(request);
    }
    if (!begun) return {begun.status, {}};
    call_result<Response> result = finish_until(begun.id, end, stop);
    if (!result && table_.is_waiting(begun.id)) abandon(begun.id);
    return result;
  }

  /// Asks and does not wait: ok with the number of the call, full when too many are without an answer, closed or failed
  /// when no answer would come.
  begun_call begin(const Request& request) noexcept {
    const queue_status why = take_all();
    if (why == queue_status::closed || why == queue_status::failed) return {why, {}};
    if (!to_.is_open()) return {queue_status::closed, {}};
    if (table_.is_full()) {
      ++statistics_.refused;
      return {queue_status::full, {}};
    }
    const call_id id = table_.open();
    numbered_request<Request> asked{id, request};
    const queue_status status = to_.try_send(asked);
    if (status != queue_status::ok) {
      table_.undo(id);
      return {status, {}};
    }
    ++statistics_.calls;
    return {status, id};
  }

  /// Waits for the answer of one call, in any order. After timed_out or cancelled the call goes on: finish it again, or
  /// abandon() it. failed for a number that is no call, or for a call that damage has ended.
  call_result<Response> finish(call_id id, std::stop_token stop = {}) {
    return finish_until(id, detail::end_of(timeout_), stop);
  }
  call_result<Response> finish_for(call_id id, std::chrono::nanoseconds timeout, std::stop_token stop = {}) {
    return finish_until(id, detail::end_of(timeout), stop);
  }
  /// The answer if it is there; empty when it is not yet, closed or failed when it never will be.
  call_result<Response> try_finish(call_id id) noexcept {
    const queue_status status = take_all();
    return table_.is_waiting(id) ? call_result<Response>{status, {}} : taken(id);
  }
  /// Gives a call up. Its place is used again when its answer has come, and been dropped.
  bool abandon(call_id id) noexcept {
    const bool was_a_call = table_.abandon(id);
    if (was_a_call) ++statistics_.abandoned;
    return was_a_call;
  }

  /// Calls whose answer has not come or was not fetched, abandoned ones and those that damage ended included.
  [[nodiscard]] std::size_t outstanding() const noexcept { return table_.outstanding(); }
  [[nodiscard]] const client_statistics& statistics() const noexcept { return statistics_; }

  /// The server gets what was asked, then closed; answers are discarded.
  void close() noexcept {
    to_.close();
    from_.close();
    ended_ = queue_status::closed;
  }

 private:
  call_result<Response> finish_until(call_id id, std::chrono::steady_clock::time_point end,
                                     const std::stop_token& stop) {
    while (table_.is_waiting(id)) {
      const queue_status status = take_one(end, stop);
      if (status != queue_status::ok) return {status, {}};
    }
    return taken(id);
  }
  call_result<Response> taken(call_id id) noexcept {
    if (!table_.is_answered(id)) return {queue_status::failed, {}};
    const numbered_response<Response>& answer = answers_[id.place];
    call_result<Response> result{answer.answered != 0 ? queue_status::ok : queue_status::failed, answer.body};
    table_.close(id);
    return result;
  }
  queue_status take_one(std::chrono::steady_clock::time_point end, const std::stop_token& stop) {
    if (ended_ != queue_status::ok) return ended_;
    numbered_response<Response> answer{};
    const queue_status status = from_.receive_for(answer, detail::left_until(end), stop);
    return arrived(status, answer);
  }
  /// Why no more is there: empty, closed, failed.
  queue_status take_all() noexcept {
    numbered_response<Response> answer{};
    queue_status status = ended_;
    while (status == queue_status::ok) status = arrived(from_.try_receive(answer), answer);
    return status;
  }
  queue_status arrived(queue_status status, const numbered_response<Response>& answer) noexcept {
    const bool is_damaged = status == queue_status::failed && detail::has_skipped(from_, skipped_);
    if (is_damaged || (status == queue_status::ok && answer.id == call_id{} && answer.answered == 0)) {
      statistics_.abandoned += table_.give_up_unanswered();
      return queue_status::ok;
    }
    if (status == queue_status::closed) ended_ = status;
    if (status != queue_status::ok) return status;
    switch (table_.arrive(answer.id)) {
      case detail::call_table::arrival::awaited:
        answers_[answer.id.place] = answer;
        ++statistics_.answers;
        break;
      case detail::call_table::arrival::late:
        ++statistics_.late;
        break;
      case detail::call_table::arrival::stray:
        ++statistics_.strays;
        break;
    }
    return status;
  }

  outgoing to_;
  incoming from_;
  detail::call_table table_;
  std::vector<numbered_response<Response>> answers_;
  std::chrono::nanoseconds timeout_;
  queue_status ended_ = queue_status::ok;  // not ok: no answer comes any more
  std::uint64_t skipped_ = 0;              // damaged answers
  client_statistics statistics_;
};

/// The end that answers.
/// Thread: one at a time.
template <message Request, message Response>
class request_server {
 public:
  using incoming = receiver<numbered_request<Request>>;
  using outgoing = sender<numbered_response<Response>>;

  request_server(incoming from, outgoing to) : from_(std::move(from)), to_(std::move(to)) {}

  /// Takes a question, to be answered later and in any order: ok, empty, closed, failed. A damaged one is `failed`
  /// once: the server tells its client, and may go on.
  queue_status try_take(Request& request, call_id& id) noexcept {
    numbered_request<Request> asked{};
    const queue_status status = from_.try_receive(asked);
    return took(status, asked, request, id);
  }
  /// Waits for a question, as receiver::receive.
  queue_status take(Request& request, call_id& id, std::stop_token stop = {}) noexcept {
    numbered_request<Request> asked{};
    const queue_status status = from_.receive(asked, std::move(stop));
    return took(status, asked, request, id);
  }
  /// Answers a question that was taken, once. ok, or closed when the client has gone.
  queue_status answer(call_id id, const Response& response) noexcept { return send({id, 1, response}); }

  /// Answers one question with what `handler(request)` returns: ok, empty, closed, failed. A handler that leaves by an
  /// exception has its caller told `failed`, and the exception goes on.
  template <class Handler>
    requires std::is_invocable_r_v<Response, Handler&, const Request&>
  queue_status try_serve(Handler&& handler) {
    Request request{};
    call_id id;
    const queue_status status = try_take(request, id);
    return status == queue_status::ok ? respond(id, request, handler) : status;
  }
  /// Answers questions until the client has closed (closed), the stop (cancelled), or a failure, damage included. A
  /// question that was taken is answered before the stop is looked at.
  template <class Handler>
    requires std::is_invocable_r_v<Response, Handler&, const Request&>
  queue_status serve(Handler&& handler, std::stop_token stop = {}) {
    while (!stop.stop_requested()) {
      Request request{};
      call_id id;
      queue_status status = take(request, id, stop);
      if (status == queue_status::timed_out) continue;  // nobody has asked for a while
      if (status == queue_status::ok) status = respond(id, request, handler);
      if (status != queue_status::ok) return status;
    }
    return queue_status::cancelled;
  }

  [[nodiscard]] const server_statistics& statistics() const noexcept { return statistics_; }

  /// Callers get the answers that were sent, then closed.
  void close() noexcept {
    to_.close();
    from_.close();
  }

 private:
  queue_status took(queue_status status, const numbered_request<Request>& asked, Request& request,
                    call_id& id) noexcept {
    if (status == queue_status::failed && detail::has_skipped(from_, skipped_) && to_.is_open())
      static_cast<void>(to_.send({}));  // in the place of the answer, for which there is space
    if (status != queue_status::ok) return status;
    ++statistics_.taken;
    request = asked.body;
    id = asked.id;
    return status;
  }
  queue_status send(const numbered_response<Response>& response) noexcept {
    const queue_status status = to_.is_open() ? to_.send(response) : queue_status::closed;
    ++(status == queue_status::ok ? statistics_.answered : statistics_.unsent);
    return status;
  }
  template <class Handler>
  queue_status respond(call_id id, const Request& request, Handler& handler) {
    // tells the caller also when the handler throws
    struct reply {
      request_server& server;
      numbered_response<Response> response;
      queue_status status = queue_status::failed;
      bool is_sent = false;
      void send() noexcept {
        is_sent = true;
        status = server.send(response);
      }
      ~reply() {
        if (is_sent) return;
        ++server.statistics_.failed;
        send();
      }
    } replying{*this, {id, 0, {}}};
    replying.response.body = handler(request);
    replying.response.answered = 1;
    replying.send();
    return replying.status;
  }

  incoming from_;
  outgoing to_;
  std::uint64_t skipped_ = 0;  // damaged questions
  server_statistics statistics_;
};

/// Both ends, and the two queues between them.
template <message Request, message Response>
struct request_channel {
  request_client<Request, Response> client;
  request_server<Request, Response> server;
};

/// A client on one device and a server on another. Errors: invalid_argument, and those of message_queue's constructor.
template <message Request, message Response>
[[nodiscard]] request_channel<Request, Response> make_request_channel(
    const machine& m, device_id client, device_id server, const request_options& options = {},
    std::source_location where = std::source_location::current()) {
  const queue_options each = detail::options_of_requests(options, where);
  const message_queue<numbered_request<Request>> there{m, client, server, each, where};
  const message_queue<numbered_response<Response>> back{m, server, client, each, where};
  return {{there.open_sender(where), back.open_receiver(where), options.outstanding, options.timeout},
          {there.open_receiver(where), back.open_sender(where)}};
}

}  // namespace weft
