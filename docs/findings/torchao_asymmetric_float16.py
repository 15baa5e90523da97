import torch
from torchao.quantization.quant_primitives import (
    MappingType,
    choose_qparams_affine,
    dequantize_affine,
    quantize_affine,
)

x = torch.tensor([[40000.0, -40000.0, 100.0, 0.0]], dtype=torch.float16)
scale, zero_point = choose_qparams_affine(x, MappingType.ASYMMETRIC, (1, 4), torch.int8)
stored = quantize_affine(x, (1, 4), scale, zero_point, torch.int8)
back = dequantize_affine(stored, (1, 4), scale, zero_point, torch.int8, output_dtype=torch.float16)

print("scale", scale.tolist(), "zero point", zero_point.tolist())
print("stored", stored.tolist())
print("read back", back.tolist())
print("fixed" if torch.allclose(back, x, atol=400) else "not fixed")
