# Prints each function that a public header declares, that no header defines, and that is not exported: free functions of a
# namespace, and the members of classes that are not SHARD_API themselves. Headers are formatted by clang-format.
{ sub(/ *\/\/.*$/, "") }
FNR == 1 { statement = ""; type = "" }
type != "" && /^};/ { type = ""; next }
statement == "" && /^(class|struct) [^;]*\{$/ { type = / SHARD_API / ? "exported" : $2; next }
statement == "" && type == "" && (/^[[:space:]]/ || /^[#}]/ || /^[A-Z_]+\([A-Z_]*\)$/ || /^$/) { next }
statement == "" && type != "" && (!/^  [^ }]/ || /^ *(public|private|protected):$/) { next }
{
  sub(/^ +/, "")
  statement = statement == "" ? $0 : statement " " $0
  if ($0 !~ /[;{}]$/) next
  text = statement
  statement = ""
  if (text !~ /;$/ || text !~ /\(/ || type == "exported") next
  if (text ~ /SHARD_API|= (default|delete|0);$/ || text ~ /^(template|inline|constexpr|static constexpr|using|typedef|class|struct|enum|extern|static_assert|namespace|friend)/) next
  name = text
  while (gsub(/<[^<>]*>/, "", name)) {}
  if (name !~ /^[^=({]+\([^*]/) next  # a variable, or a member that is a pointer to a function
  print FILENAME ": " (type == "" ? "" : type "::") text
}
