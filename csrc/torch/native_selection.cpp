// Which calls of the selection operators (softmax, arg-max, top-k, sort, cumsum, index and scatter) go to libopapi.
//
// Whatever is not listed or does not fit takes the generic route: float64 and complex, wrong dims and shapes (whose
// error then has torch's own type and text), out= forms (torch resizes those), internal formats, empty tensors,
// scalars.
#include "torch/native.h"

namespace aloft::torch_route {
namespace {

bool floating(const at::Tensor& t) {
  const auto type = t.scalar_type();
  return type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
}

bool ordered(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kFloat:
    case at::kHalf:
    case at::kBFloat16:
    case at::kLong:
    case at::kInt:
    case at::kShort:
    case at::kChar:
    case at::kByte:
    case at::kBool:
      return true;
    default:
      return false;
  }
}

// An operand of the door: up to eight dimensions, something in it, and a valid dim.
bool fits(const at::Tensor& t, int64_t dim) {
  return t.dim() >= 1 && t.dim() <= 8 && dim >= -t.dim() && dim < t.dim() && t.numel() > 0 && plain(t);
}

bool softmax(const c10::IValue* a) {
  const at::Tensor& x = a[0].toTensor();
  return floating(x) && fits(x, a[1].toInt()) && !a[2].toBool();
}

bool softmax_backward(const c10::IValue* a) {
  const at::Tensor &g = a[0].toTensor(), &y = a[1].toTensor();
  return floating(g) && fits(g, a[2].toInt()) && y.scalar_type() == g.scalar_type() &&
         a[3].toScalarType() == g.scalar_type() && y.sizes() == g.sizes() && plain(y);
}

bool arg_extreme(const c10::IValue* a) {
  const at::Tensor& x = a[0].toTensor();
  return ordered(x) && x.scalar_type() != at::kBool && fits(x, a[1].isNone() ? 0 : a[1].toInt());
}

// torch's own argmax makes its result and calls the out= form.
bool arg_extreme_out(const c10::IValue* a) {
  if (!arg_extreme(a)) return false;
  const at::Tensor &x = a[0].toTensor(), &out = a[3].toTensor();
  const int64_t line = a[1].isNone() ? x.numel() : x.size(a[1].toInt());
  return line > 0 && out.scalar_type() == at::kLong && out.numel() == x.numel() / line && out.is_contiguous() &&
         plain(out) &&
         out.dim() == (a[2].toBool()   ? x.dim()
                       : a[1].isNone() ? 0
                                       : x.dim() - 1);
}

bool top_k(const c10::IValue* a) {
  const at::Tensor& x = a[0].toTensor();
  const int64_t k = a[1].toInt(), dim = a[2].toInt();
  return ordered(x) && x.scalar_type() != at::kBool && fits(x, dim) && k >= 0 && k <= x.size(dim);
}

bool sort(const c10::IValue* a) {
  const at::Tensor& x = a[0].toTensor();
  return ordered(x) && fits(x, a[1].toInt());
}

bool sort_stable(const c10::IValue* a) {
  const at::Tensor& x = a[0].toTensor();
  return ordered(x) && fits(x, a[2].toInt());
}

bool cumsum(const c10::IValue* a) {
  const at::Tensor& x = a[0].toTensor();
  if (!ordered(x) || !fits(x, a[1].toInt())) return false;
  if (a[2].isNone()) return true;
  const auto type = a[2].toScalarType();
  return type != at::kBool && type != at::kDouble && !c10::isComplexType(type);
}

bool index_select(const c10::IValue* a) {
  const at::Tensor &x = a[0].toTensor(), &index = a[2].toTensor();
  return ordered(x) && fits(x, a[1].toInt()) && index.dim() == 1 &&
         (index.scalar_type() == at::kLong || index.scalar_type() == at::kInt) && plain(index);
}

bool gather(const c10::IValue* a) {
  const at::Tensor &x = a[0].toTensor(), &index = a[2].toTensor();
  return ordered(x) && fits(x, a[1].toInt()) && index.dim() == x.dim() && index.scalar_type() == at::kLong &&
         plain(index);
}

bool scatter_value(const c10::IValue* a) { return gather(a); }
bool scatter(const c10::IValue* a) {
  const at::Tensor &x = a[0].toTensor(), &source = a[3].toTensor();
  return gather(a) && source.dim() == x.dim() && source.scalar_type() == x.scalar_type() && plain(source);
}
// torch's own scatter makes its result and calls the out= form.
bool made_like(const at::Tensor& x, const at::Tensor& out) {
  return out.scalar_type() == x.scalar_type() && out.sizes() == x.sizes() && plain(out);
}
bool scatter_out(const c10::IValue* a) { return scatter(a) && made_like(a[0].toTensor(), a[4].toTensor()); }
bool scatter_value_out(const c10::IValue* a) { return scatter_value(a) && made_like(a[0].toTensor(), a[4].toTensor()); }
bool scatter_add(const c10::IValue* a) { return scatter(a) && a[0].toTensor().scalar_type() != at::kBool; }

}  // namespace

void add_selection(std::vector<Native>* table) {
  const std::initializer_list<Native> rows = {
      {"_softmax", {"aclnnSoftmax"}, softmax},
      {"_log_softmax", {"aclnnLogSoftmax"}, softmax},
      {"_softmax_backward_data", {"aclnnSoftmaxBackward"}, softmax_backward},
      {"_log_softmax_backward_data", {"aclnnLogSoftmaxBackward"}, softmax_backward},
      {"argmax", {"aclnnArgMax"}, arg_extreme},
      {"argmax.out", {"aclnnArgMax"}, arg_extreme_out},
      {"argmin", {"aclnnArgMin"}, arg_extreme},
      {"argmin.out", {"aclnnArgMin"}, arg_extreme_out},
      {"topk", {"aclnnTopk"}, top_k},
      {"sort", {"aclnnSort"}, sort},
      {"sort.stable", {"aclnnSort"}, sort_stable},
      {"max.dim", {"aclnnMaxDim"}, arg_extreme},
      {"min.dim", {"aclnnMinDim"}, arg_extreme},
      {"cumsum", {"aclnnCumsum"}, cumsum},
      {"index_select", {"aclnnIndexSelect"}, index_select},
      {"gather", {"aclnnGather"}, gather},
      {"scatter.src", {"aclnnScatter"}, scatter},
      {"scatter.src_out", {"aclnnScatter"}, scatter_out},
      {"scatter_.src", {"aclnnInplaceScatter"}, scatter},
      {"scatter.value", {"aclnnScatterValue"}, scatter_value},
      {"scatter.value_out", {"aclnnScatterValue"}, scatter_value_out},
      {"scatter_.value", {"aclnnInplaceScatterValue"}, scatter_value},
      {"scatter_add", {"aclnnScatterAdd"}, scatter_add},
      {"scatter_add_", {"aclnnScatterAdd"}, scatter_add},
  };
  table->insert(table->end(), rows);
}

}  // namespace aloft::torch_route
