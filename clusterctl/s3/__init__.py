"""Objects and folders of S3: data sets that are downloaded, and copies of outputs.

AWS is asked by the client of the EC2 provider: it has the credentials, and the words for refusals.
"""
