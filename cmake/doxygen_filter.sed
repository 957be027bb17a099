# Doxygen reads public headers through this filter, which keeps line numbers. The comment above #pragma once describes the
# file. A comment above or behind a member or an enumerator (indented by two spaces: no local variable) describes that.
1,/^#pragma once$/ {
  s|^// |/// |
  s|^#pragma once$|/// @file|
}
s|^  // |  /// |
/^  \(return\|if\|for\|while\|case\|using\) /!s|^\(  [^ /].*[;,a-z0-9_]\)  *// |\1  ///< |
