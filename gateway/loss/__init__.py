"""Why prompt tokens that some worker had cached were computed again: `GET /admin/cache-loss`.

witness     sees decisions and answers (`Router.witnesses`), counts; all else is done between requests
outlook     what each token of a prompt would be lost to, and what of it the engine then computed
past        block hashes that were once cached, and how they were last lost
alike       earlier prompts by what is in them: text that is known, but not at this place
place       where in a conversation a token is, and what kind of text stands there
offenders   the worst of it
"""
