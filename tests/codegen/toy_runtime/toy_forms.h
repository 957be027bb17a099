// The form inference that the toy runtime has. toy.json names this header, so that shardgen declares no other
// functions of these types; they are therefore spelled as toy.json spells them.
#pragma once

#include "toy.h"

namespace toy::forms {
void SameForm(const toy::Call& call, const toy::Form& x, toy::Form& out);
void FilledForm(const toy::Call& call, const toy::Ints& shape, toy::Type dtype, toy::Form& out);
}  // namespace toy::forms
