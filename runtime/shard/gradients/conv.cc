// Second derivatives of convolutions. A convolution is linear in the image and in the filter, so all of them are
// convolutions and their gradients.
#include "shard/gradients/common.h"
#include "shard/ops/api.h"
#include "shard/ops/conv_ops.h"

namespace shard::external {
namespace {

using Triple = std::tuple<Tensor, Tensor, Tensor>;

/// The gradients of (x_grad, filter_grad) = gradient(x, filter, grad_out), which are linear in each argument, from those
/// of the results, of which any may be absent.
template <class Forward, class Gradient>
Triple second(const Tensor& x, const Tensor& filter, const Tensor& grad_out, const Tensor& of_x_grad,
              const Tensor& of_filter_grad, GradMask wanted, const Forward& forward, const Gradient& gradient) {
  Triple result;
  if (wanted[0] && of_filter_grad.defined()) std::get<0>(result) = std::get<0>(gradient(x, of_filter_grad, grad_out));
  if (wanted[1] && of_x_grad.defined()) std::get<1>(result) = std::get<1>(gradient(of_x_grad, filter, grad_out));
  if (wanted[2]) {
    Tensor& sum = std::get<2>(result);
    if (of_x_grad.defined()) sum = forward(of_x_grad, filter);
    if (of_filter_grad.defined()) {
      const Tensor other = forward(x, of_filter_grad);
      sum = sum.defined() ? add(sum, other) : other;
    }
  }
  return result;
}

}  // namespace

Triple conv2d_grad_grad(const Tensor& input, const Tensor& filter, const Tensor& grad_out,
                        const Tensor& grad_input_grad, const Tensor& grad_filter_grad, const IntArray& strides,
                        const IntArray& paddings, const std::string& padding_algorithm, const IntArray& dilations,
                        int groups, const std::string& data_format, GradMask wanted) {
  return second(
      input, filter, grad_out, grad_input_grad, grad_filter_grad, wanted,
      [&](const Tensor& x, const Tensor& f) {
        return conv2d(x, f, strides, paddings, padding_algorithm, dilations, groups, data_format);
      },
      [&](const Tensor& x, const Tensor& f, const Tensor& grad) {
        return conv2d_grad(x, f, grad, strides, paddings, padding_algorithm, dilations, groups, data_format);
      });
}

Triple depthwise_conv2d_double_grad(const Tensor& input, const Tensor& filter, const Tensor& grad_out,
                                    const Tensor& grad_input_grad, const Tensor& grad_filter_grad,
                                    const IntArray& strides, const IntArray& paddings,
                                    const std::string& padding_algorithm, int groups, const IntArray& dilations,
                                    const std::string& data_format, GradMask wanted) {
  return second(
      input, filter, grad_out, grad_input_grad, grad_filter_grad, wanted,
      [&](const Tensor& x, const Tensor& f) {
        return depthwise_conv2d(x, f, strides, paddings, padding_algorithm, groups, dilations, data_format);
      },
      [&](const Tensor& x, const Tensor& f, const Tensor& grad) {
        return depthwise_conv2d_grad(x, f, grad, strides, paddings, padding_algorithm, groups, dilations, data_format);
      });
}

Triple conv3d_double_grad(const Tensor& input, const Tensor& filter, const Tensor& grad_out,
                          const Tensor& grad_input_grad, const Tensor& grad_filter_grad, const IntArray& strides,
                          const IntArray& paddings, const std::string& padding_algorithm, int groups,
                          const IntArray& dilations, const std::string& data_format, GradMask wanted) {
  return second(
      input, filter, grad_out, grad_input_grad, grad_filter_grad, wanted,
      [&](const Tensor& x, const Tensor& f) {
        return conv3d(x, f, strides, paddings, padding_algorithm, groups, dilations, data_format);
      },
      [&](const Tensor& x, const Tensor& f, const Tensor& grad) {
        return conv3d_grad(x, f, grad, strides, paddings, padding_algorithm, groups, dilations, data_format);
      });
}

Triple conv2d_transpose_double_grad(const Tensor& x, const Tensor& filter, const Tensor& grad_out,
                                    const Tensor& grad_x_grad, const Tensor& grad_filter_grad, const IntArray& strides,
                                    const IntArray& paddings, const IntArray& output_padding,
                                    const IntArray& output_size, const std::string& padding_algorithm, int groups,
                                    const IntArray& dilations, const std::string& data_format, GradMask wanted) {
  return second(
      x, filter, grad_out, grad_x_grad, grad_filter_grad, wanted,
      [&](const Tensor& of, const Tensor& f) {
        return conv2d_transpose(of, f, strides, paddings, output_padding, output_size, padding_algorithm, groups,
                                dilations, data_format);
      },
      [&](const Tensor& of, const Tensor& f, const Tensor& grad) {
        return conv2d_transpose_grad(of, f, grad, strides, paddings, output_padding, output_size, padding_algorithm,
                                     groups, dilations, data_format);
      });
}

Triple conv3d_transpose_double_grad(const Tensor& x, const Tensor& filter, const Tensor& grad_out,
                                    const Tensor& grad_x_grad, const Tensor& grad_filter_grad, const IntArray& strides,
                                    const IntArray& paddings, const IntArray& output_padding,
                                    const IntArray& output_size, const std::string& padding_algorithm, int groups,
                                    const IntArray& dilations, const std::string& data_format, GradMask wanted) {
  return second(
      x, filter, grad_out, grad_x_grad, grad_filter_grad, wanted,
      [&](const Tensor& of, const Tensor& f) {
        return conv3d_transpose(of, f, strides, paddings, output_padding, output_size, padding_algorithm, groups,
                                dilations, data_format);
      },
      [&](const Tensor& of, const Tensor& f, const Tensor& grad) {
        return conv3d_transpose_grad(of, f, grad, strides, paddings, output_padding, output_size, padding_algorithm,
                                     groups, dilations, data_format);
      });
}

}  // namespace shard::external
