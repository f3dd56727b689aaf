// SPDX-License-Identifier: Apache-2.0
#include "paired.hpp"

#include "weft/core/version.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

namespace weft::bench {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double part) {
    return values[static_cast<std::size_t>(part * static_cast<double>(values.size() - 1) + 0.5)];
  };
  return {at(0.05), at(0.5), at(0.95)};
}

options parse(int argc, char** argv) {
  options how;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word{argv[i]};
    if (word == "--json") {
      how.json = true;
    } else if (word == "--samples" && i + 1 < argc) {
      how.samples = std::max(5, std::atoi(argv[++i]));
    } else {
      std::fprintf(stderr, "usage: %s [--samples N] [--json]\n", argv[0]);
      std::exit(2);
    }
  }
  return how;
}

void print_machine(const options& how, std::string_view remark) {
  std::string model = "unknown processor";
  std::ifstream info{"/proc/cpuinfo"};
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) {
      model = line.substr(line.find(':') + 2);
      break;
    }
  }
  const std::string commit{library_commit()};
  if (how.json) {
    std::printf("{\"machine\":\"%s\",\"cores\":%u,\"commit\":\"%s\",\"remark\":\"%.*s\"}\n", model.c_str(),
                std::thread::hardware_concurrency(), commit.c_str(), static_cast<int>(remark.size()), remark.data());
  } else {
    std::printf("%s, %u cores, commit %s; %.*s\n", model.c_str(), std::thread::hardware_concurrency(), commit.c_str(),
                static_cast<int>(remark.size()), remark.data());
  }
}

void compare(std::string_view title, const std::vector<contender>& contenders, const options& how, double bytes) {
  std::vector<std::vector<double>> times(contenders.size());
  for (const contender& c : contenders) static_cast<void>(c.sample());  // warm-up
  for (int s = 0; s < how.samples; ++s) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      // the order turns, so that nobody always follows the same neighbour
      const std::size_t who = (i + static_cast<std::size_t>(s)) % contenders.size();
      times[who].push_back(contenders[who].sample());
    }
  }
  if (!how.json) std::printf("\n%.*s\n", static_cast<int>(title.size()), title.data());
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    const spread t = spread_of(times[i]);
    std::vector<double> ratios;
    for (std::size_t s = 0; s < times[i].size(); ++s)
      ratios.push_back(times[i][s] / times[0][s]);  // speed of the first against this
    const spread r = spread_of(ratios);
    if (how.json) {
      std::printf(
          "{\"name\":\"%.*s\",\"contender\":\"%s\",\"seconds\":{\"median\":%.9g,\"p5\":%.9g,\"p95\":%.9g,\"samples\":%"
          "zu}",
          static_cast<int>(title.size()), title.data(), contenders[i].name.c_str(), t.median, t.p5, t.p95,
          times[i].size());
      if (bytes > 0) std::printf(",\"bytes_per_second\":%.6g", bytes / t.median);
      std::printf(",\"first_against_this\":{\"median\":%.4f,\"p5\":%.4f,\"p95\":%.4f}}\n", r.median, r.p5, r.p95);
      continue;
    }
    std::printf("  %-34s %10.3f us", contenders[i].name.c_str(), t.median * 1e6);
    if (bytes > 0) std::printf("  %7.2f GB/s", bytes / t.median / 1e9);
    std::printf("   (p5 %.3f, p95 %.3f us)", t.p5 * 1e6, t.p95 * 1e6);
    if (i != 0) std::printf("   first/this speed %.2f (p5 %.2f, p95 %.2f)", r.median, r.p5, r.p95);
    std::printf("\n");
  }
}

void compare_difference(std::string_view title, const contender& first, const contender& second, int pairs,
                        const options& how) {
  std::vector<double> here, there, more;
  for (int i = 0; i < 200; ++i) {  // warm-up
    static_cast<void>(first.sample());
    static_cast<void>(second.sample());
  }
  for (int i = 0; i < pairs; ++i) {
    const bool turned = i % 2 != 0;
    const double before = (turned ? second : first).sample();
    const double after = (turned ? first : second).sample();
    here.push_back(turned ? after : before);
    there.push_back(turned ? before : after);
    more.push_back(here.back() - there.back());
  }
  std::sort(more.begin(), more.end());
  const auto quartile = [&](std::size_t n) { return more[n * (more.size() - 1) / 4]; };
  const double a = spread_of(here).median, b = spread_of(there).median;
  if (how.json) {
    std::printf(
        "{\"name\":\"%.*s\",\"first\":\"%s\",\"second\":\"%s\",\"seconds\":{\"first\":%.9g,\"second\":%.9g,"
        "\"difference\":{\"p25\":%.9g,\"median\":%.9g,\"p75\":%.9g,\"pairs\":%zu}}}\n",
        static_cast<int>(title.size()), title.data(), first.name.c_str(), second.name.c_str(), a, b, quartile(1),
        quartile(2), quartile(3), more.size());
    return;
  }
  std::printf("\n%.*s\n  %-34s %10.3f us\n  %-34s %10.3f us\n", static_cast<int>(title.size()), title.data(),
              first.name.c_str(), a * 1e6, second.name.c_str(), b * 1e6);
  std::printf("  difference of pairs: %.3f us (p25 %.3f, p75 %.3f, %zu pairs)\n", quartile(2) * 1e6, quartile(1) * 1e6,
              quartile(3) * 1e6, more.size());
}

}  // namespace weft::bench
