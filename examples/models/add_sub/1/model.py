"""The smallest useful Python model: OUTPUT0 = INPUT0 + INPUT1, OUTPUT1 = INPUT0 - INPUT1."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests: list) -> list:
        """Answer a batch: one response per request, in order. Each request keeps its own batch dimension."""
        responses = []
        for request in requests:
            input0 = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            input1 = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            outputs = [
                pb_utils.Tensor("OUTPUT0", input0 + input1),
                pb_utils.Tensor("OUTPUT1", input0 - input1),
            ]
            responses.append(pb_utils.InferenceResponse(output_tensors=outputs))
        return responses
