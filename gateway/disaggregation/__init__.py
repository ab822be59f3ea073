"""Disaggregated prefill and decode: one worker computes the prompt, another one answers.

legs             the plan of such a request: its legs, and its attempts at them
prefill_leg      one prefill leg               stream_holdback  the beginning of a decode leg's stream
failed_pairs     workers excluded after failures
stats, metrics   plans, failures and times
"""
