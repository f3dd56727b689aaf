// SPDX-License-Identifier: Apache-2.0
// A diagnosis as text for a terminal, as a part of a document, and as a page that can be mailed.
#pragma once

#include "command_line/output.hpp"
#include "doctor/checks/checks.hpp"

#include <string>
#include <string_view>

namespace weft::tool {

class html_page;

/// Where a check is explained, from the root of weft's sources.
[[nodiscard]] std::string docs_of(const check& one);

/// Failures and warnings whole, what is unknown with its reason, the others by name. Only `wanted`, whole, where it
/// names a check. Lines are at most `columns` wide.
[[nodiscard]] std::string doctor_text(const session& run, const machine_facts& machine, const diagnosis& found,
                                      std::string_view wanted, std::size_t columns);

/// gpus, counts and checks of weft.doctor/1.
void add_diagnosis(json& document, const machine_facts& machine, const diagnosis& found, std::string_view wanted);

/// Pictures of the GPUs and their rates, then the findings, the worst first. Only `wanted`, where it names a check.
void add_doctor(html_page& page, const machine_facts& machine, const diagnosis& found, std::string_view wanted = {});

/// "8 GPUs, 1 failure, 2 warnings".
[[nodiscard]] std::string headline(const machine_facts& machine, const diagnosis& found);

}  // namespace weft::tool
