"""Functions of the ops of vision.yaml and of their gradients."""

import itertools

import numpy as np

OPS = {}


def op(name):
    def register(function):
        OPS[name] = function
        return function

    return register


# Grids, and images at their places.


def positions(size, aligned):
    """From -1 to 1: the elements of a dim, or the middles of its equal parts."""
    if size == 1:
        return np.zeros(1)
    ends = np.linspace(-1, 1, size)
    return ends if aligned else ends * (size - 1) / size


GRIDS = {"images, aligned": (3, 5), "images": (4, 2), "volumes, aligned": (2, 1, 3), "volumes": (1, 2, 4)}


@op("affine_grid")
def affine_grid(call):
    (matrices,) = call.inputs
    space = GRIDS[call.case]
    axes = np.meshgrid(*[positions(size, call.case.endswith("aligned")) for size in space], indexing="ij")
    points = np.stack([*axes[::-1], np.ones(space)], axis=-1)
    with np.errstate(invalid="ignore"):
        of_image = matrices.reshape(len(matrices), *[1] * len(space), *matrices.shape[1:])
        return (points[None, ..., None, :] * of_image).sum(-1)


def place_of(coordinate, size, padding, aligned):
    """Where a coordinate is between the elements of a dim, and how fast it moves there."""
    span = size - 1 if aligned else size
    start = 0.0 if aligned else -0.5
    at, slope = (coordinate + 1) / 2 * span + start, span / 2
    if padding == "reflection" and span > 0:
        turns, rest = divmod(abs(at - start), span)
        slope *= -1 if at < start else 1
        slope *= -1 if turns % 2 == 1 and rest > 0 else 1
        at = (span - rest if turns % 2 == 1 else rest) + start
    if padding != "zeros" and not 0 <= at < size - 1:
        at, slope = min(max(at, 0.0), size - 1.0), 0.0
    return at, slope


class Sampling:
    """The attributes of a case, from its name: 'volumes, bilinear, border, aligned'."""

    def __init__(self, name):
        words = name.replace("volumes, ", "").split(", ")
        self.mode, self.padding, self.aligned = words[0], words[1], "aligned" in words

    def elements(self, coordinates, sizes):
        """The elements around a place as (index, weight, slopes of the weight in each coordinate)."""
        ways = []
        for coordinate, size in zip(coordinates, sizes[::-1]):
            at, slope = place_of(coordinate, size, self.padding, self.aligned)
            if self.mode == "nearest":
                ways.append([(int(np.round(at)), 1.0, 0.0)])
            else:
                first = int(np.floor(at))
                ways.append([(first, 1 - (at - first), -slope), (first + 1, at - first, slope)])
        for way in itertools.product(*ways):
            index = tuple(w[0] for w in way[::-1])
            if all(0 <= i < size for i, size in zip(index, sizes)):
                weight = np.prod([w[1] for w in way])
                slopes = [w[2] * np.prod([o[1] for o in way if o is not w]) for w in way]
                yield index, weight, np.array(slopes)


@op("grid_sample")
def grid_sample(call):
    x, grid = call.inputs
    sampling = Sampling(call.case)
    out = np.zeros(x.shape[:2] + grid.shape[1:-1])
    for place in itertools.product(*map(range, grid.shape[:-1])):
        for index, weight, _ in sampling.elements(grid[place] / 4, x.shape[2:]):
            out[(place[0], slice(None)) + place[1:]] += weight * x[(place[0], slice(None)) + index]
    return out


@op("grid_sample_grad")
def grid_sample_grad(call):
    x, grid, out_grad = call.inputs
    sampling = Sampling(call.case)
    x_grad, grid_grad = np.zeros(x.shape), np.zeros(grid.shape)
    for place in itertools.product(*map(range, grid.shape[:-1])):
        grad = out_grad[(place[0], slice(None)) + place[1:]]
        for index, weight, slopes in sampling.elements(grid[place] / 4, x.shape[2:]):
            at = (place[0], slice(None)) + index
            x_grad[at] += weight * grad
            grid_grad[place] += (grad * x[at]).sum() * slopes
    return [x_grad, grid_grad]


# Images from what max pooling left of them; all cases have results of 4 x 4 elements.


@op("unpool")
def unpool(call):
    x, indices = call.inputs
    out = np.zeros(x.shape[:2] + (16,))
    for at in np.ndindex(*x.shape):
        out[at[:2] + (indices[at],)] = x[at]
    return out.reshape(x.shape[:2] + (4, 4))


@op("unpool_grad")
def unpool_grad(call):
    _, indices, _, out_grad = call.inputs
    n, c, h, w = indices.shape
    return np.take_along_axis(out_grad.reshape(n, c, 16), indices.reshape(n, c, h * w), axis=2).reshape(indices.shape)


# Boxes.


def element_at(x, at_y, at_x):
    """The channels of an image, x [c, h, w], at a place between elements."""
    sizes = x.shape[1:]
    if any(at < -1 or at > size for at, size in zip((at_y, at_x), sizes)):
        return []
    ways = []
    for at, size in zip((at_y, at_x), sizes):
        at = min(max(at, 0.0), size - 1.0)
        first = min(int(at), size - 1)
        ways.append([(first, 1 - (at - first)), (min(first + 1, size - 1), at - first)])
    return [((a, b), v * w) for (a, v), (b, w) in itertools.product(*ways)]


def roi_samples(call):
    """For each part of each box: the image, the place in the result, and the elements with their weights."""
    x, boxes, first = call.inputs[:3]
    halved = call.case.startswith("half")
    scale, ratio, offset = (0.5, None, 0.5) if halved else (1.0, 2, 0.0)
    for r, box in enumerate(boxes):
        x1, y1, x2, y2 = box * scale - offset
        sizes = [y2 - y1, x2 - x1] if halved else [max(y2 - y1, 1.0), max(x2 - x1, 1.0)]
        steps = [size / count for size, count in zip(sizes, (2, 3))]
        places = [ratio or max(int(np.ceil(step)), 0) for step in steps]
        for part in np.ndindex(2, 3):
            found = []
            for k in np.ndindex(*places):
                at = [s + (p + (i + 0.5) / n) * d for s, p, i, n, d in zip((y1, x1), part, k, places, steps)]
                found += [(e, w / np.prod(places)) for e, w in element_at(x[0], *at)]
            yield int(r >= first[0]), r, part, found


@op("roi_align")
def roi_align(call):
    x, boxes = call.inputs[:2]
    out = np.zeros((len(boxes), x.shape[1], 2, 3))
    for image, r, part, found in roi_samples(call):
        for element, weight in found:
            out[(r, slice(None)) + part] += weight * x[(image, slice(None)) + element]
    return out


@op("roi_align_grad")
def roi_align_grad(call):
    x, out_grad = call.inputs[0], call.inputs[3]
    x_grad = np.zeros(x.shape)
    for image, r, part, found in roi_samples(call):
        for element, weight in found:
            x_grad[(image, slice(None)) + element] += weight * out_grad[(r, slice(None)) + part]
    return x_grad


@op("nms")
def nms(call):
    (boxes,) = call.inputs
    threshold = 0.5 if call.case == "half" else 0.0
    kept = []
    for i, (x1, y1, x2, y2) in enumerate(boxes):
        overlaps = False
        for a1, b1, a2, b2 in boxes[kept]:
            both = max(min(x2, a2) - max(x1, a1), 0.0) * max(min(y2, b2) - max(y1, b1), 0.0)
            together = (x2 - x1) * (y2 - y1) + (a2 - a1) * (b2 - b1) - both
            overlaps = overlaps or (together != 0 and both / together > threshold)
        if not overlaps:
            kept.append(i)
    return np.array(kept, dtype=np.int64)


# The cases of box_coder whose boxes are not normalized.
WHOLE_ELEMENTS = {"encode, a variance for each", "decode", "decode, axis 1, a variance for each"}


@op("box_coder")
def box_coder(call):
    prior, target = call.inputs[:2]
    each, unit = "for each" in call.case, float(call.case in WHOLE_ELEMENTS)
    numbers = [0.5, 0.25, 2, 1] if call.case.endswith("variances") else [1, 1, 1, 1]
    variances = call.inputs[2] if each else np.broadcast_to(np.array(numbers, dtype=float), prior.shape)
    along = 0 if "axis 1" in call.case else 1
    prior, variances = np.expand_dims(prior, 1 - along), np.expand_dims(variances, 1 - along)
    with np.errstate(all="ignore"):
        size = prior[..., 2:] - prior[..., :2] + unit
        center = prior[..., :2] + size / 2
        if call.case.startswith("encode"):
            target = target[:, None]
            places = ((target[..., :2] + target[..., 2:]) / 2 - center) / size
            sizes = np.log(np.abs((target[..., 2:] - target[..., :2] + unit) / size))
            return np.concatenate([places, sizes], axis=-1) / variances
        code = variances * target
        place, half = code[..., :2] * size + center, np.exp(code[..., 2:]) * size / 2
        return np.concatenate([place - half, place + half - unit], axis=-1)


@op("roi_pool")
def roi_pool(call):
    x, boxes, first = call.inputs
    out, places = np.zeros((len(boxes), x.shape[1], 2, 3)), np.full((len(boxes), x.shape[1], 2, 3), -1)
    for r, c, i, j in np.ndindex(*out.shape):
        image, found = x[int(r >= first[0]), c], []
        scaled = boxes[r] * (0.5 if call.case.startswith("half") else 1.0)
        x1, y1, x2, y2 = (int(np.floor(abs(v) + 0.5) * np.sign(v)) for v in scaled)
        height, width = max(y2 - y1 + 1, 1), max(x2 - x1 + 1, 1)
        for h, w in np.ndindex(*image.shape):
            in_rows = i * height // 2 <= h - y1 < -(-(i + 1) * height // 2)
            if in_rows and j * width // 3 <= w - x1 < -(-(j + 1) * width // 3):
                found.append((h, w))
        if found:
            h, w = max(found, key=lambda at: image[at])
            out[r, c, i, j], places[r, c, i, j] = image[h, w], h * image.shape[1] + w
    return [out, places]
