// SPDX-License-Identifier: Apache-2.0
#include "collective_options.hpp"
#include "command_line/command_entry.hpp"
#include "command_line/commands.hpp"

namespace weft::tool {

namespace {

/// A count of 1 or more of something.
template <class Target>
complaint read_count(const std::string& word, const char* too_few, Target& to) {
  std::int64_t count = 1;
  if (auto wrong = read(word, parse_count, count)) return wrong;
  if (count == 0) return too_few;
  if (!word.empty()) to = static_cast<Target>(count);
  return std::nullopt;
}

complaint read_starts(const std::string& words, std::vector<std::chrono::nanoseconds>& to) {
  if (words.empty()) return std::nullopt;
  to.clear();
  for (const std::string_view text : split(words, ',')) {
    const auto start = parse_duration(text);
    if (!start) return start.error().what;
    to.push_back(*start);
  }
  return std::nullopt;
}

complaint read_strategy(const std::string& word, balance& to) {
  std::vector<balance> strategies{to};
  if (auto wrong = read(word, parse_strategies, strategies)) return wrong;
  if (strategies.size() != 1) return "--strategy is one of them";
  to = strategies.front();
  return std::nullopt;
}

void explain_launch_of(command_entries& to, CLI::App& explain) {
  struct words {
    std::string items, rate, start, strategy, granularity;
  };
  const auto raw = std::make_shared<words>();
  CLI::App* launch = explain.add_subcommand("launch", "How a launch of so many items would be divided");
  explain_launch_options& options = to.line.explain_launch;
  launch->add_option("ITEMS", raw->items, "Items, with K, M, G, T (1000 each): 1M")->required()->type_name("");
  launch->add_option("--rate", raw->rate, "Items per second of the fastest device: 200M")->type_name("COUNT");
  launch
      ->add_option("--start", raw->start,
                   "What each piece costs whatever its size: 20us, or 20us,120us for unlike devices")
      ->type_name("LIST");
  launch->add_option("--strategy", raw->strategy, "automatic, static_equal, guided, …")->type_name("NAME");
  launch->add_option("--granularity", raw->granularity, "Borders are multiples of this: 1")->type_name("COUNT");
  launch->add_flag("--streamed", options.streamed,
                   "Data comes from host memory and goes back; default: it stays on the devices");
  to.add(launch, command_of<run_explain_launch, &command_line::explain_launch>, [&options, raw]() -> complaint {
    const auto items = parse_count(raw->items);
    if (!items) return items.error().what;
    options.items = *items;
    return first_of({read_count(raw->rate, "--rate is at least 1 item per second", options.items_per_second),
                     read_count(raw->granularity, "--granularity is at least 1 item", options.granularity),
                     read_starts(raw->start, options.starts), read_strategy(raw->strategy, options.strategy)});
  });
}

void explain_collective_of(command_entries& to, CLI::App& explain, collective what) {
  struct words : collective_words {
    std::string size;
  };
  const auto raw = std::make_shared<words>();
  CLI::App* one =
      explain.add_subcommand(std::string{to_string(what)}, "Which algorithm does it, and why the others lost");
  explain_collective_options& options = to.line.explain_collective;
  one->add_option("SIZE", raw->size, "Bytes of the whole array, with K, M, G, T (1024 each): 100M; at most 256G")
      ->required()
      ->type_name("");
  raw->add_to(*one, "Insist on one");
  one->add_flag("--measure", options.measure, "Measure the rates first, and keep them for later commands");
  to.add(one, command_of<run_explain_collective, &command_line::explain_collective>, [=, &options]() -> complaint {
    options.what = what;
    std::vector<collective_algorithm> algorithms{options.algorithm};
    if (auto wrong = raw->take(options)) return wrong;
    const auto size = parse_size(raw->size);
    if (!size) return size.error().what;
    // every piece of every step is gone through: more takes minutes, and gigabytes of memory
    if (*size > (std::uint64_t{256} << 30)) return "SIZE is at most 256G";
    options.size = *size;
    if (auto wrong = read(raw->algorithm, parse_algorithms, algorithms)) return wrong;
    if (algorithms.size() != 1) return "--algorithm is one of them; all of them are shown anyhow";
    options.algorithm = algorithms.front();
    return std::nullopt;
  });
}

}  // namespace

void add_explain_commands(command_entries& to) {
  CLI::App* explain = to.app.add_subcommand("explain", "Show what would be decided, and why");
  to.add_group(explain, "what is to be explained? weft explain launch, or a collective: weft explain all_reduce");
  explain_launch_of(to, *explain);
  for (int i = 0; i < collective_count; ++i) explain_collective_of(to, *explain, static_cast<collective>(i));
}

}  // namespace weft::tool
