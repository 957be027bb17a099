// <math.h> is the C library's, although the runtime has a family math.
#include <math.h>

#include <shard/shard.h>

double sine(double x) { return ::sin(x); }
