"""Conformance test of an engine (`kvgate engine test URL`): what a worker does, beside what kvgate assumes.

report     findings, their verdicts and words       judgement  verdicts from what was observed; pure
subject    the worker under test: its answers       followed   its KV events, in an index of their own
questions  the questions, in order             prompt_questions   those on prompts
prompt_check   tokens of a prompt by every source
"""
