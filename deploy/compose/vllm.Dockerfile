# vLLM with kvtrail's recorder; sidecar and dashboard run in their own containers.
FROM python:3.12-slim AS wheel
WORKDIR /source
COPY . .
RUN pip install --no-cache-dir build==1.6.1 && python -m build --wheel --outdir /wheels

# The version that constraints.txt pins, which is the one that is tested.
FROM vllm/vllm-openai:v0.32.0
COPY --from=wheel /wheels /tmp/wheels
RUN pip install --no-cache-dir --no-deps /tmp/wheels/*.whl
