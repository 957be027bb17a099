"""Functions of the ops of random.yaml, for calls whose results do not depend on the generator."""

import numpy as np

OPS = {}


def op(name):
    def register(function):
        OPS[name] = function
        return function

    return register


@op("top_p_sampling")
def top_p_sampling(call):
    """With a ps of at most the largest probability only the first one is drawn, from the likeliest to the least likely,
    whatever the threshold."""
    x = call.inputs[0]
    ids = np.argmax(x, axis=1)[:, None]
    return [np.take_along_axis(x, ids, axis=1), ids]
