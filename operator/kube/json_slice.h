// Finds parts of a JSON text without building a tree: the items of a list of thousands of pods, the
// object of a watch event. Values are given as slices of the text. The text comes from a JSON
// encoder; what is malformed is refused or sliced wrongly, but never read past its end. Keys are
// compared as written (Kubernetes' keys need no escapes). Pure.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace meshtrain::kube {

// Calls visit(key, value) per member until it returns false. False when `object` is not a JSON
// object.
bool ForEachMember(std::string_view object,
                   const std::function<bool(std::string_view key, std::string_view value)>& visit);

// Calls visit(element) per element until it returns false. False when `array` is not a JSON array.
bool ForEachElement(std::string_view array,
                    const std::function<bool(std::string_view element)>& visit);

// The value at a path of keys: Slice(R"({"metadata":{"uid":"7"}})", {"metadata", "uid"}) ==
// "\"7\"". "" where absent.
std::string_view Slice(std::string_view object, std::initializer_list<std::string_view> path);

// Slice() of a string without escapes, unquoted; "" otherwise. Good for names, uids, versions,
// timestamps.
std::string_view SliceString(std::string_view object, std::initializer_list<std::string_view> path);

}  // namespace meshtrain::kube
