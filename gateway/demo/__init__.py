"""The demo (`kvgate demo`): a simulated fleet, and its twin behind round robin, under the same traffic.

traffic    the requests: agents' loops, questions about documents, chats; pure
score      figures of one side, and the lines that compare both; pure
player     sends each request to both sides and measures the answers
processes  the simulated workers        view    the terminal        report  the HTML page
"""
