"""Tests of the wheel, installed beside packages of others that are named as folders of this repository are.

`make test-wheel` gives the compiled wheel, in GATEWAY_WHEEL; without that a pure one is built.
"""
